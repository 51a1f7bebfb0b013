"""A link from one role to another: waiting messages go to ZeroMQ frame by frame, as fast as the link takes them."""

from __future__ import annotations

from collections.abc import Mapping

import zmq

from covey.engines.transport.frames import TAKEN, Frame
from covey.engines.transport.leaky_bucket import LeakyBucket
from covey.engines.transport.outbox import Outbox, OutgoingMessage
from covey.engines.transport.staging import LOOK
from covey.errors import PlanError
from covey.message import Address

MAX_PATH = 107  # of a Unix socket
FRAMES_AHEAD = 4  # what ZeroMQ has accepted can no longer be overtaken, so it gets little at a time


class PeerLink:
    """The way to one peer."""

    def __init__(self, socket: zmq.Socket[bytes], endpoint: str, token: bytes, life: int = 0) -> None:
        self.outbox = Outbox()
        self.messages = 0
        self.left = 0  # of the messages
        self.token, self.life = token, life  # of this end
        self.offered = 0  # bytes of all messages, as windows count them
        self.credited = 0  # of these, what the peer's programs have taken
        self.receipt: Frame | None = None  # acknowledges the peer's own messages, before anything else leaves
        self.blocked = False
        self.bucket: LeakyBucket | None = None  # where no more than so much may leave
        self.socket = socket
        self.socket.set(zmq.SNDHWM, FRAMES_AHEAD)
        self.socket.set(zmq.IPV6, 1)
        self.socket.connect(endpoint)

    def flush(self) -> None:
        """Hand over frames until ZeroMQ takes no more, or no more may leave now."""
        self.blocked = False
        while not self.blocked and (self.receipt or (self.outbox.next() is not None and not self.pause())):
            try:
                self._step()
            except zmq.Again:
                # A send looks only now and then whether earlier frames have left; a poll always does.
                self.blocked = not self.socket.poll(0, zmq.POLLOUT)

    def close(self, poller: zmq.Poller) -> None:
        """Drop what waits; the peer is no more."""
        if self.blocked:
            poller.unregister(self.socket)
        self.socket.close(linger=0)

    @property
    def unread(self) -> int:
        """Bytes in the window: sent, and not taken by the peer's programs."""
        return self.offered - self.credited

    def tell(self, place: int, taken: int) -> None:
        """Acknowledge how many bytes of the peer's messages have been taken; a newer number replaces an older one."""
        self.receipt = Frame(TAKEN, place, 0, taken, 0, self.token, self.life)

    def credit(self, taken: int) -> bool:
        """Take the peer's acknowledgement; False if it cannot be true."""
        if not self.credited <= taken <= self.offered:
            return False
        self.credited = taken
        return True

    @property
    def staging(self) -> bool:
        """Whether what goes next is still on its way from a GPU."""
        outgoing = self.outbox.next()
        return outgoing is not None and not outgoing.ready()

    def pause(self) -> float:
        """Seconds until what waits may leave."""
        if self.staging:
            return LOOK
        return self.bucket.pause() if self.bucket and self.outbox.pending else 0.0

    def _step(self) -> None:
        if self.receipt:
            self.socket.send(self.receipt.pack(), zmq.NOBLOCK)
            self.receipt = None
            return
        waiting, outgoing = self.outbox.pending, self.outbox.next()
        assert outgoing is not None
        self._send(outgoing)
        if self.bucket:
            self.bucket.pour(waiting - self.outbox.pending)

    def _send(self, outgoing: OutgoingMessage) -> None:
        if outgoing.head:
            self.socket.send(outgoing.opening(self.left, self.token, self.life), zmq.NOBLOCK)
            self.outbox.opened(outgoing)
            self.left += 1
        else:
            self.socket.send(outgoing.prefix(self.token, self.life), zmq.NOBLOCK | zmq.SNDMORE)
            self.socket.send(outgoing.pieces[0], zmq.NOBLOCK, copy=False)
            self.outbox.moved(outgoing)


def check_book(me: Address, book: Mapping[Address, str]) -> None:
    """Refuse a book of endpoints that no sockets can have."""
    if me not in book:
        raise PlanError(f"{me} has no endpoint of its own in the address book ({', '.join(map(str, book))})")
    for endpoint in book.values():
        path = endpoint.removeprefix("ipc://")
        if endpoint.startswith("ipc://") and len(path.encode()) > MAX_PATH:
            raise PlanError(
                f"{path}: a local socket's path may have at most {MAX_PATH} bytes, this has {len(path.encode())}; "
                "set TMPDIR to a shorter directory"
            )
