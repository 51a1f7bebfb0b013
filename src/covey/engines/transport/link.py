"""Sockets of a role: one on which all peers' frames come in, and one to each peer, which takes them as it can."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import zmq

from covey.engines.transport.frames import DATA, OFFER, OPEN, SMALL, TAKEN, Frame
from covey.engines.transport.keys import ConnectionGuard, KeyChecker, KeyRing, private
from covey.engines.transport.leaky_bucket import LeakyBucket
from covey.engines.transport.outbox import Outbox, OutgoingMessage
from covey.engines.transport.staging import LOOK
from covey.errors import PlanError
from covey.message import Address, Message, pack, raw

if TYPE_CHECKING:
    from covey.engines.transport.cipher.stream import CipherStream

MAX_PATH = 107  # of a Unix socket
FRAMES_AT_ONCE = 64  # received in one poll, so that a busy link does not keep the role from the rest
COMING, LEAVING = 0b01, 0b10  # ZeroMQ's threads that encrypt, one bit for each
EVENTS, READABLE = int(zmq.EVENTS), int(zmq.POLLIN)  # what pyzmq takes for members of enumerations it makes such of
FRAMES_AHEAD = 4  # what ZeroMQ has accepted can no longer be overtaken, so it gets little at a time

Other = int | zmq.Socket[Any]
"""What else a role waits for: a file descriptor, or a socket."""


class ReceivingSocket:
    """Where the frames of all peers come in. Its poller also waits for whatever else the role does."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str, largest: int, key_ring: KeyRing | None,
        guard: KeyChecker | ConnectionGuard | None,
    ) -> None:  # fmt: skip
        self.socket, self.guard = context.socket(zmq.PULL), guard
        self.socket.set(zmq.AFFINITY, COMING if key_ring else 0)
        self.socket.set(zmq.RCVHWM, FRAMES_AHEAD)
        self.socket.set(zmq.MAXMSGSIZE, largest)
        self.socket.set(zmq.IPV6, 1)
        self.poller = zmq.Poller()
        self.poller.register(self.socket, zmq.POLLIN)
        if key_ring:
            key_ring.lock(self.socket)
        if guard:
            guard.watch(self.socket)
            for wakeup in guard.wakeups:
                self.poller.register(wakeup, zmq.POLLIN)
        self.socket.bind(endpoint)
        self.endpoint = self.socket.getsockopt_string(zmq.LAST_ENDPOINT)
        private(self.endpoint)
        self.others: tuple[Other, ...] = ()

    def watch(self, others: tuple[Other, ...]) -> None:
        """Wait for these, too, and no longer for other ones."""
        if others != self.others:
            for other in self.others:
                self.poller.unregister(other)
            for other in others:
                self.poller.register(other, zmq.POLLIN)
            self.others = others

    def answer(self, ready: Collection[object]) -> None:
        """Let the guard decide who may come in, if somebody knocked."""
        if self.guard and any(wakeup in ready for wakeup in self.guard.wakeups):
            self.guard.answer()

    def frames(self) -> Iterator[tuple[bytes, Address | None]]:
        """The first piece of each frame that has come, and who has proved to have sent it."""
        for _ in range(FRAMES_AT_ONCE):
            if not int(self.socket.getsockopt(EVENTS)) & READABLE:  # which takes less than an exception
                return
            try:
                if isinstance(self.guard, KeyChecker):
                    frame = self.socket.recv(zmq.NOBLOCK, copy=False)
                    head, proved = frame.bytes, self.guard.who(frame)
                else:
                    head, proved = self.socket.recv(zmq.NOBLOCK), None
            except zmq.Again:  # what was readable is gone with its connection
                return
            yield head, proved

    def drop_rest(self) -> None:
        """Take no more of the present frame."""
        while self.socket.get(zmq.RCVMORE):
            self.socket.recv(copy=False)

    def remove(self) -> None:
        """Leave no file behind."""
        if self.endpoint.startswith("ipc://"):
            Path(self.endpoint.removeprefix("ipc://")).unlink(missing_ok=True)


class PeerLink:
    """The way to one peer: a socket, and with `secure` a stream from the first tensors on that are no small ones.

    On one host short frames go by a `lane` while it has room.
    """

    def __init__(
        self, socket: zmq.Socket[bytes], endpoint: str, token: bytes, incarnation: int = 0, place: int = 0,
        secure: Callable[[Callable[[bytes], None]], CipherStream] | None = None,
        lane: Callable[[bytes, int], bool] | None = None,
    ) -> None:  # fmt: skip
        self.place, self.secure = place, secure
        self.lane, self.socketed = lane, 0  # how many frames have left by the socket
        self.stream: CipherStream | None = None
        self.offers: deque[bytes] = deque()  # of connections for the stream: these go by the socket
        self.outbox = Outbox()
        self.messages = 0
        self.left = 0  # of the messages
        self.token, self.incarnation = token, incarnation  # of this end
        self.offered = 0  # bytes of all messages, as windows count them
        self.credited = 0  # of these, what the peer's programs have taken
        self.receipt: Frame | None = None  # acknowledges the peer's own messages, before anything else leaves
        self.blocked = False
        self.bucket: LeakyBucket | None = None  # where no more than this much may leave
        self.socket = socket
        self.socket.set(zmq.SNDHWM, FRAMES_AHEAD)
        self.socket.set(zmq.IPV6, 1)
        self.socket.connect(endpoint)

    def send_short(self, message: Message, size: int) -> bool:
        """Whether a message of this size has left at once, by the lane: it is short, and nothing is before it."""
        if self.lane is None or size > SMALL or self.blocked or self.outbox.pending or self.receipt or self.bucket:
            return False
        header, tensors = pack(message)
        frame = Frame(OPEN, self.place, len(header), self.left, 0, self.token, self.incarnation)
        if not self.lane(b"".join([frame.pack(), header, *map(raw, tensors)]), self.socketed):
            return False
        self.left += 1
        return True

    def flush(self, poller: zmq.Poller) -> None:
        """Hand over frames until ZeroMQ takes no more, or no more may leave now; wait for it with this poller."""
        was, self.blocked = self.blocked, False
        while not self.blocked and self._due():
            try:
                self._step()
            except zmq.Again:
                # A send looks only now and then whether earlier frames have left; a poll always does.
                self.blocked = not self.socket.poll(0, zmq.POLLOUT)
        if self.blocked and not was:
            poller.register(self.socket, zmq.POLLOUT)
        elif was and not self.blocked:
            poller.unregister(self.socket)

    def stay_with_curve(self) -> None:
        """The peer cannot come: nothing has left by the stream, and nothing will."""
        self.stream = self.secure = None
        self.offers.clear()

    def close(self, poller: zmq.Poller) -> None:
        """Drop what waits; the peer is no more."""
        if self.blocked:
            poller.unregister(self.socket)
        self.socket.close(linger=0)

    @property
    def waiting(self) -> bool:
        """Whether something waits to leave."""
        return bool(self.offers or self.outbox.pending or (self.stream is not None and self.receipt is not None))

    @property
    def stuck(self) -> bool:
        """Whether something waits for the peer, or for the network."""
        return self.blocked or (self.stream is not None and (self.waiting or bool(self.stream.unsent)))

    @property
    def unread(self) -> int:
        """Bytes in the window: sent, and not taken by the peer's programs."""
        return self.offered - self.credited

    def tell(self, place: int, taken: int) -> None:
        """Acknowledge how many bytes of the peer's messages have been taken; a newer number replaces an older one."""
        self.receipt = Frame(TAKEN, place, 0, taken, 0, self.token, self.incarnation)

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

    def _due(self) -> bool:
        """Whether something may leave now."""
        if self.offers or self.stream is None or not self.stream.full:
            return bool(self.offers or self.receipt or (self.outbox.next() is not None and not self.pause()))
        return False

    def _step(self) -> None:
        if self.offers:
            self.socket.send(self.offers[0], zmq.NOBLOCK)
            self.offers.popleft()
            return
        if self.receipt:
            self._put(self.receipt, b"")
            self.receipt = None
            return
        waiting, outgoing = self.outbox.pending, self.outbox.next()
        assert outgoing is not None
        self._send(outgoing)
        if self.bucket:
            self.bucket.pour(waiting - self.outbox.pending)

    def _send(self, outgoing: OutgoingMessage) -> None:
        if outgoing.head and outgoing.pieces and self.secure and self.stream is None:
            self.stream = self.secure(self._offer)
        elif outgoing.head and outgoing.pieces and self.stream is None:
            self._open(outgoing)
        elif outgoing.head:
            self._put(outgoing.opening(self.left, self.token, self.incarnation), outgoing.head, not outgoing.pieces)
            self.outbox.opened(outgoing)
            self.left += 1
        else:
            self._put(outgoing.prefix(self.token, self.incarnation), outgoing.pieces[0], len(outgoing.pieces) == 1)
            self.outbox.moved(outgoing)

    def _open(self, outgoing: OutgoingMessage) -> None:
        """Hand over the beginning of a message with its first piece."""
        piece = outgoing.pieces[0]
        frame = outgoing.opening(self.left, self.token, self.incarnation)._replace(offset=len(piece))
        self.socket.send(frame.pack() + outgoing.head, zmq.NOBLOCK | zmq.SNDMORE)
        self.socket.send(piece, zmq.NOBLOCK, copy=False)
        self.socketed += 1
        self.left += 1
        self.outbox.opened(outgoing)
        self.outbox.moved(outgoing)

    def _put(self, frame: Frame, body: bytes | memoryview, last: bool = True) -> None:
        """Hand over a frame; zmq.Again if it does not go now. `last`: the next one is not of the same message."""
        if self.stream is not None:
            self.stream.put(frame, body, last)
        elif frame.kind == DATA:
            self.socket.send(frame.pack(), zmq.NOBLOCK | zmq.SNDMORE)
            self.socket.send(body, zmq.NOBLOCK, copy=False)
            self.socketed += 1
        else:
            whole = frame.pack() + bytes(body)
            if self.lane is None or not self.lane(whole, self.socketed):
                self.socket.send(whole, zmq.NOBLOCK)
                self.socketed += 1

    def _offer(self, offer: bytes) -> None:
        self.offers.append(Frame(OFFER, self.place, 0, 0, 0, self.token, self.incarnation).pack() + offer)


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
