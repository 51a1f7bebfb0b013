"""The receiving end of a link's records."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import zmq

from covey.engines.transport.cipher.records import (
    BACK,
    FORTH,
    HEAD,
    TAG,
    CipherOffer,
    HeaderDigests,
    LinkIdentity,
    RecordCipher,
    RecordHead,
    sealed_answer,
)
from covey.engines.transport.frames import DATA
from covey.errors import WireError

ANSWERED = 1 << 20  # bytes of records that are acknowledged together
AT_ONCE = 64  # records that are received in one go
WAKE = 256 << 10  # bytes of a record that must have come before its receiver is woken


class CipherSource:
    """Opens the records of one link. Nothing of a record is used before its tag was found right."""

    def __init__(self, link: LinkIdentity, largest: int, poller: zmq.Poller) -> None:
        self.link, self.largest, self.poller = link, largest, poller
        self.number = 0  # of the next record
        self.digests = HeaderDigests()
        self.line: socket.socket | None = None
        self.offer: CipherOffer | None = None
        self.linked = False
        self.counter = 0  # of the next answer on this connection
        self.unanswered = 0
        self._head, self._body = bytearray(HEAD), bytearray()
        self._have = 0  # bytes of what comes next
        self._due: RecordHead | None = None  # of the record whose head has come

    @property
    def handle(self) -> int:
        return -1 if self.line is None else self.line.fileno()

    def dial(self, host: str, offer: CipherOffer) -> None:
        """Connect as the sender asks; an offer that came before is made again because nobody has come."""
        if self.offer is not None and self.offer.number >= offer.number:
            if self.line is not None or self.offer.number > offer.number:
                return
        else:
            self.offer, self.counter = offer, 0
        self.close()
        self.line = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        self.line.setblocking(False)
        self.line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.line.connect_ex((host, self.offer.port))
        self.poller.register(self.line.fileno(), zmq.POLLOUT)
        self.linked, self._have, self._due = False, 0, None

    def greet(self) -> None:
        """The connection is there, or failed: prove that the offer has come, and say from where to go on."""
        assert self.line is not None and self.offer is not None
        self._records = RecordCipher(self.offer.forth, self.link.bound(self.offer, FORTH))
        self._answers = RecordCipher(self.offer.back, self.link.bound(self.offer, BACK))
        self.linked = True
        self.poller.register(self.line.fileno(), zmq.POLLIN)
        self._say(self.offer.ticket)

    def records(self) -> Iterator[tuple[RecordHead, bytes]]:
        """The records that have come. WireError if one is not what was due: then the connection is to be closed."""
        for _ in range(AT_ONCE):
            if self._due is None:
                if not self._fill(self._head, HEAD):
                    return
                self._due, self._have = self._checked(RecordHead.read(self._head)), 0
            if not self._fill(self._body, self._due.length):
                return
            head, self._due, self._have = self._due, None, 0
            body = self._records.open(
                self.number, memoryview(self._body)[: head.length], bytes(self._head) + self.digests.bound(head)
            )
            self.digests.note(head, body)
            self.number += 1
            self.unanswered += head.length
            if self.unanswered >= ANSWERED or (head.kind == DATA and head.last):
                self._say()
            yield head, body
        if self.line is not None:  # what is left wakes its receiver, however little it is
            self.line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)

    def close(self) -> None:
        if self.line is not None:
            self.poller.unregister(self.line.fileno())
            self.line.close()
            self.line = None

    def _checked(self, head: RecordHead) -> RecordHead:
        if head.number != self.number:
            raise WireError(f"record {head.number} is refused: {self.number} is due")
        if not TAG <= head.length <= self.largest:
            raise WireError(f"a record of {head.length} bytes is refused: {TAG} to {self.largest} can be")
        if len(self._body) < head.length:
            self._body = bytearray(head.length)
        return head

    def _fill(self, room: bytearray, size: int) -> bool:
        """Whether as many bytes are there; the end of the connection closes it here, too."""
        while self.line is not None and self._have < size:
            try:
                count = self.line.recv_into(memoryview(room)[self._have : size])
            except BlockingIOError:
                self.line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, min(size - self._have, WAKE))
                return False
            except OSError:
                count = 0
            if not count:
                self.close()
            self._have += count
        return self.line is not None

    def _say(self, before: bytes = b"") -> None:
        """Acknowledge what has come, if the connection takes it."""
        assert self.line is not None
        data = before + sealed_answer(self._answers, self.counter, self.number)
        self.counter += 1
        try:
            whole = self.line.send(data) == len(data)
            self.unanswered = 0
        except BlockingIOError:  # the peer takes no answers now: it will have one with a later record
            return
        except OSError:
            whole = False
        if not whole:
            self.close()
