"""A second link between two workers of one machine, of the kind that joins machines: TCP, encrypted."""

from __future__ import annotations

import time

from covey.engines.transport.keys import KeyRing, new_pair
from covey.engines.transport.zmq import ZmqTransport
from covey.errors import PeerLost
from covey.message import Address, Message

LARGEST = 1 << 26  # bytes of a message
PATIENCE = 10.0  # seconds


class Loopback:
    """One end: make it, `open` it with the other's key, `connect` it to the other's endpoint."""

    def __init__(self, me: Address, peer: Address) -> None:
        self.me, self.peer, self._pair = me, peer, new_pair()
        self.key = self._pair.public

    def open(self, key: str) -> None:
        book = {self.me: "tcp://127.0.0.1:*", self.peer: "tcp://127.0.0.1:*"}
        key_ring = KeyRing(self._pair, {self.me: self.key, self.peer: key})
        self.links = ZmqTransport(self.me, book, limit=LARGEST, key_ring=key_ring)
        self.endpoint = self.links.endpoint

    def connect(self, endpoint: str) -> None:
        self.links.book = {**self.links.book, self.peer: endpoint}

    def turn(self, ball: Message, throws: bool) -> None:
        """Throw and catch, or catch and throw back; nothing else happens on this thread meanwhile."""
        ball.sender = self.me
        if throws:
            self.links.offer(self.peer, ball)
        until = time.monotonic() + PATIENCE
        while not self.links.poll(PATIENCE)[0]:
            if time.monotonic() > until:
                raise PeerLost(f"{self.peer} did not answer on a second link within {PATIENCE:g} s")
        if not throws:
            self.links.offer(self.peer, ball)

    def close(self) -> None:
        self.links.close(linger=1.0)
