"""Members of a run in this very process, on loopback, and strangers that would like to be."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import zmq

from covey.engines.transport.keys import LAUNCHER, KeyRing, Pair, new_pair
from covey.engines.transport.token import new_token
from covey.engines.transport.zmq import ZmqTransport
from covey.message import Address, Message
from covey.vector import Vector

A, B = Address("worker", 0), Address("worker", 1)
LIMIT = 1 << 20


class Load(Message, kw_only=True):
    wire_name = "test.members.load"

    step: int = 0
    what: Vector = Vector(())


class Two:
    """Two workers of one run, linked over tcp; with keys unless `insecure`."""

    def __init__(self, *, insecure: bool = False) -> None:
        self.token = new_token()
        self.pairs = {who: new_pair() for who in (A, B, LAUNCHER)}
        self.public = {who: pair.public for who, pair in self.pairs.items()}
        self.a, self.b = (self.member(who, insecure) for who in (A, B))
        self.a.book = self.b.book = {A: self.a.endpoint, B: self.b.endpoint}

    def member(self, who: Address, insecure: bool = False) -> ZmqTransport:
        book = {A: "tcp://127.0.0.1:*", B: "tcp://127.0.0.1:*"}
        ring = None if insecure else KeyRing(self.pairs[who], self.public)
        return ZmqTransport(who, book, limit=LIMIT, key_ring=ring, token=self.token)

    def exchange(self, steps: int, first: int = 0) -> None:
        """So many messages each way, each answered; they must come, in order."""
        for step in range(first, first + steps):
            self.a.offer(B, Load(sender=A, step=step))
            self.await_from(self.b, step)
            self.b.offer(A, Load(sender=B, step=step))
            self.await_from(self.a, step)

    def await_from(self, member: ZmqTransport, step: int) -> None:
        got: list[Message] = []
        self.until(lambda: bool(got), lambda: got.extend(member.poll(0.01)[0]))
        assert [getattr(message, "step", None) for message in got] == [step]

    def until(self, done: Callable[[], bool], work: Callable[[], object] | None = None) -> None:
        end = time.monotonic() + 30
        while not done():
            assert time.monotonic() < end, f"refused by B: {dict(self.b.refusals.counts)}"
            if work:
                work()
            else:
                self.a.poll(0.005)
                self.b.poll(0.005)

    def close(self) -> None:
        self.a.close()
        self.b.close()


@contextmanager
def two(*, insecure: bool = False) -> Iterator[Two]:
    pair = Two(insecure=insecure)
    try:
        yield pair
    finally:
        pair.close()


@contextmanager
def knocking(
    endpoint: str, kind: int = zmq.PUSH, mine: Pair | None = None, server: str = ""
) -> Iterator[zmq.Socket[bytes]]:
    """A stranger at a door, with the keys that it may have."""
    with zmq.Context() as context, context.socket(kind) as socket:
        socket.linger = 0
        if mine:
            socket.curve_publickey, socket.curve_secretkey = mine.public.encode(), mine.secret.encode()
            socket.curve_serverkey = server.encode()
        socket.connect(endpoint)
        yield socket
