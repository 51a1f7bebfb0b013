"""Who may speak: between machines every link is encrypted, and both ends prove that they belong to the run (CURVE)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec
import zmq
from zmq.utils import z85

from covey.message import Address

LAUNCHER = Address("launcher", 0)
ZAP = "inproc://zeromq.zap.01"  # where ZeroMQ asks whether a key is welcome (its RFC 27)


class Pair(msgspec.Struct, frozen=True):
    """A member's key: the public half is its name in the run, the secret half never leaves the run's own processes."""

    public: str
    secret: str

    def __repr__(self) -> str:
        return f"Pair({self.public})"  # a secret has no business in a log


def new_pair() -> Pair:
    public, secret = zmq.curve_keypair()
    return Pair(public.decode(), secret.decode())


@dataclass(frozen=True, slots=True)
class Ring:
    """What one member holds: its own key, and the public half of everybody's."""

    mine: Pair
    public: Mapping[Address, str]

    def lock(self, door: zmq.Socket[bytes]) -> None:
        """Before `bind`: only whoever holds a welcome key comes in."""
        door.curve_server = 1
        door.zap_domain = b"covey"
        self._own(door)

    def open(self, link: zmq.Socket[bytes], peer: Address) -> None:
        """Before `connect`: speak to this peer and no impostor."""
        link.curve_serverkey = self.public[peer].encode()
        self._own(link)

    def _own(self, socket: zmq.Socket[bytes]) -> None:
        socket.curve_publickey = self.mine.public.encode()
        socket.curve_secretkey = self.mine.secret.encode()


class Guard:
    """Answers ZeroMQ's question, for all locked doors of one context; register `socket` in the poll, then `answer`."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], ring: Ring) -> None:
        self.names = {public: who for who, public in ring.public.items()}
        self.refused = 0
        self.strangers: deque[str] = deque(maxlen=32)  # where they came from
        self.socket = context.socket(zmq.REP)
        self.socket.linger = 0
        self.socket.bind(ZAP)

    def admit(self, members: Iterable[tuple[Address, str]]) -> None:
        """Welcome these keys too."""
        self.names.update({public: who for who, public in members})

    def answer(self) -> None:
        """Every question that waits; never waits itself."""
        while self.socket.poll(0):
            version, number, _, origin, _, mechanism, *key = self.socket.recv_multipart()
            public = z85.encode(key[0]).decode() if mechanism == b"CURVE" and len(key) == 1 else ""
            welcome = public in self.names
            if not welcome:
                self.refused += 1
                if (stranger := origin.decode(errors="replace")) not in self.strangers:
                    self.strangers.append(stranger)
            verdict = (b"200", b"", public.encode()) if welcome else (b"400", b"not of this run", b"")
            self.socket.send_multipart([version, number, *verdict, b""])

    def who(self, frame: zmq.Frame) -> Address | None:
        """Whose key the sender of this frame has proved to hold."""
        return self.names.get(str(frame.get("User-Id")))
