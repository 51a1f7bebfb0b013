"""Two members whose connections beside CURVE's pass through somebody who can do anything on the way."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import torch

from covey.engines.transport.cipher.records import HEAD, RecordHead
from covey.engines.transport.keys import KeyRing
from covey.engines.transport.zmq import ZmqTransport
from covey.message import Address, Message
from covey.vector import Vector
from tests.safety.members import LIMIT, A, B, Load, Two

FRAME = 64 << 10
NUMBERS = 100_000  # float32: in seven records, the first of which has the header


class Cut(Exception):
    """(From whoever changes a record) The connection is to be cut here."""


class Wire:
    """Between B, which connects, and A, whose records pass `change` one by one."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.door = socket.create_server(("127.0.0.1", 0))
        self.door.setblocking(False)
        self.change: Callable[[RecordHead, bytes], bytes] = lambda head, record: record
        self.records: list[bytes] = []
        self.greetings: list[bytes] = []
        self.back: bytes = b""  # said to A in the place of B
        self.ends: tuple[socket.socket, socket.socket] | None = None
        self._coming = b""

    def pump(self) -> None:
        with suppress(BlockingIOError):
            theirs, _ = self.door.accept()
            self.cut()
            ours = socket.create_connection(("127.0.0.1", self.port))
            self.ends, self._coming = (ours, theirs), b""
            for end in self.ends:
                end.setblocking(False)
            self.greetings.append(b"")
        if self.ends is None:
            return
        a, b = self.ends
        try:
            if said := _read(b):
                self.greetings[-1] += said
                a.sendall(said)
            if self.back:
                a.sendall(self.back)
                self.back = b""
            self._coming += _read(a)
            while len(self._coming) >= HEAD:
                head = RecordHead.read(bytearray(self._coming[:HEAD]))
                if len(self._coming) < (size := HEAD + head.length):
                    break
                record, self._coming = self._coming[:size], self._coming[size:]
                self.records.append(record)
                b.setblocking(True)
                b.sendall(self.change(head, record))
                b.setblocking(False)
        except (Cut, OSError):
            self.cut()

    def cut(self) -> None:
        for end in self.ends or ():
            end.close()
        self.ends = None

    def close(self) -> None:
        self.cut()
        self.door.close()


def _read(end: socket.socket) -> bytes:
    with suppress(BlockingIOError):
        data = end.recv(1 << 20)
        if not data:
            raise Cut
        return data
    return b""


class Wired(Two):
    """A sends to B over the wire."""

    def __init__(self) -> None:
        super().__init__()
        assert self.a.cipher
        self.wire = Wire(self.a.cipher.door.port)
        self.a.cipher.door.port = self.wire.door.getsockname()[1]
        self.got: list[Message] = []

    def member(
        self, who: Address, insecure: bool = False, incarnations: dict[Address, int] | None = None
    ) -> ZmqTransport:
        book = {A: "tcp://127.0.0.1:*", B: "tcp://127.0.0.1:*"}
        return ZmqTransport(
            who, book, limit=LIMIT, frame=FRAME, key_ring=KeyRing(self.pairs[who], self.public), token=self.token,
            incarnations=incarnations, cipher="aes-256-gcm",
        )  # fmt: skip

    def turn(self) -> None:
        self.a.poll(0)
        self.wire.pump()
        self.got += self.b.poll(0.001)[0]

    def arrive(self, count: int) -> list[Message]:
        """The messages at B, once there are so many."""
        self.until(lambda: len(self.got) >= count, self.turn)
        return self.got

    def close(self) -> None:
        self.wire.close()
        super().close()


@contextmanager
def wired() -> Iterator[Wired]:
    pair = Wired()
    try:
        yield pair
    finally:
        pair.close()


def load(step: int, value: float = 1.0) -> Load:
    return Load(sender=A, step=step, what=Vector([torch.full((NUMBERS,), float(value))]))
