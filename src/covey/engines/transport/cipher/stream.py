"""The sending end of a link's records."""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import NamedTuple

import zmq

from covey.engines.transport.cipher.records import (
    ANSWER,
    BACK,
    FORTH,
    CipherOffer,
    HeaderDigests,
    LinkIdentity,
    RecordCipher,
    RecordHead,
    new_offer,
    read_answer,
)
from covey.engines.transport.frames import Frame
from covey.errors import WireError

AGAIN = 1.0  # seconds after which an offer that nobody has answered is made again
PAUSE = 0.1  # seconds before another connection is offered in place of one that broke
PATIENCE = 10.0  # seconds in which somebody comes who can
MOST_KEPT = 64 << 20  # bytes that are kept for another connection: then sending waits for an answer


class SentRecord(NamedTuple):
    """A record that has not been acknowledged."""

    number: int
    head: bytes
    bound: bytes
    sealed: bytes


class CipherStream:
    """Seals the frames of one link. What is not acknowledged when a connection breaks goes again on the next one."""

    def __init__(self, link: LinkIdentity, port: int, poller: zmq.Poller, tell: Callable[[CipherOffer], None]) -> None:
        self.link, self.port, self.poller, self.tell = link, port, poller, tell
        self.number = 0  # of the next record
        self.digests = HeaderDigests()
        self.kept: deque[SentRecord] = deque()
        self.kept_bytes = 0
        self.unsent: deque[memoryview] = deque()
        self.line: socket.socket | None = None
        self.offers = 0
        self.offer: CipherOffer | None = None
        self.spent = b""  # the ticket of the connection before
        self.due = 0.0  # when to make an offer
        self.records: RecordCipher | None = None
        self.answers: RecordCipher | None = None
        self.counter = -1  # of the last answer
        self._heard = b""
        self._begun = time.monotonic()
        self.make_offer()

    @property
    def full(self) -> bool:
        """Whether nothing more can be taken now."""
        return self.line is None or bool(self.unsent) or self.kept_bytes > MOST_KEPT

    @property
    def unreachable(self) -> bool:
        """Whether nobody has ever come: what this role's port is to the peer's host, nobody told it."""
        return self.records is None and time.monotonic() > self._begun + PATIENCE

    @property
    def handle(self) -> int:
        return -1 if self.line is None else self.line.fileno()

    def make_offer(self) -> None:
        """Offer a connection if there is none and it is time."""
        if self.line is None and (now := time.monotonic()) >= self.due:
            if self.offer is None:
                self.offer = new_offer(self.port, self.offers)
                self.offers += 1
            self.tell(self.offer)
            self.due = now + AGAIN

    def welcome(self, hello: bytes) -> int:
        """Check the first answer of whoever showed this link's ticket; the number of the record that it waits for."""
        assert self.offer is not None
        answers = RecordCipher(self.offer.back, self.link.bound(self.offer, BACK))
        self.counter, number = read_answer(answers, hello, -1)
        if not (self.kept[0].number if self.kept else self.number) <= number <= self.number:
            raise WireError(f"{self.link.receiver} waits for record {number}, which is not at hand")
        self.answers = answers
        return number

    def attach(self, line: socket.socket, number: int) -> None:
        """Go on with this record on a new connection, which the peer has proved to be its own."""
        assert self.offer is not None
        before, self.records = self.records, RecordCipher(self.offer.forth, self.link.bound(self.offer, FORTH))
        self.spent, self.offer = self.offer.ticket, None
        self.line, self._heard = line, b""
        self.acknowledged(number)
        kept, self.kept, self.kept_bytes = self.kept, deque(), 0
        for record in kept:
            assert before is not None
            bound = record.head + record.bound
            body = before.open(record.number, record.sealed, bound)
            self._keep(record._replace(sealed=self.records.seal(record.number, body, bound)))
        self._register()
        self.push()

    def put(self, frame: Frame, body: bytes | memoryview, last: bool) -> None:
        """Seal a frame, and send as much as goes without waiting; only while it is not full."""
        assert self.records is not None
        head = RecordHead.of(frame, len(body), last, self.number)
        bound, packed = self.digests.bound(head), head.pack()
        sealed = self.records.seal(self.number, body, packed + bound)
        self.digests.note(head, body if isinstance(body, bytes) else b"")
        self._keep(SentRecord(self.number, packed, bound, sealed))
        self.number += 1
        self.push()

    def push(self) -> None:
        """Send what the connection takes, if there is one."""
        if self.line is None:
            return
        while self.unsent:
            try:
                sent = self.line.sendmsg(list(islice(self.unsent, 16)))
            except BlockingIOError:
                break
            except OSError:
                self.broken()
                return
            while sent:
                first = self.unsent.popleft()
                if sent < len(first):
                    self.unsent.appendleft(first[sent:])
                sent -= min(sent, len(first))
        self._register()

    def hear(self) -> None:
        """Take the peer's answers; WireError if they are not its own."""
        assert self.line is not None and self.answers is not None
        try:
            data = self.line.recv(128 * ANSWER)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.broken()
            return
        self._heard += data
        while len(self._heard) >= ANSWER:
            answer, self._heard = self._heard[:ANSWER], self._heard[ANSWER:]
            self.counter, number = read_answer(self.answers, answer, self.counter)
            if number > self.number:
                raise WireError(f"{self.link.receiver} acknowledged record {number}, which was never sent")
            self.acknowledged(number)

    def acknowledged(self, number: int) -> None:
        """All records below this number have come."""
        while self.kept and self.kept[0].number < number:
            self.kept_bytes -= len(self.kept.popleft().sealed)

    def broken(self) -> None:
        """The connection is no more; another one is offered soon."""
        self.close()
        self.unsent.clear()
        self.due = time.monotonic() + PAUSE

    def finish(self, until: float) -> None:
        """Send what waits, and see that the peer has read it; at most until then."""
        try:
            while self.line is not None and (left := until - time.monotonic()) > 0:
                if not self.unsent:
                    self.line.shutdown(socket.SHUT_WR)
                self.line.settimeout(left)
                if self.unsent:
                    self.line.sendall(self.unsent.popleft())
                elif not self.line.recv(128 * ANSWER):
                    return
        except OSError:
            return

    def close(self) -> None:
        if self.line is not None:
            self.poller.unregister(self.line.fileno())
            self.line.close()
            self.line = None

    def _keep(self, record: SentRecord) -> None:
        self.kept.append(record)
        self.kept_bytes += len(record.sealed)
        self.unsent += (memoryview(record.head), memoryview(record.sealed))

    def _register(self) -> None:
        assert self.line is not None
        self.poller.register(self.line.fileno(), zmq.POLLIN | (zmq.POLLOUT if self.unsent else 0))
