"""One connection of a guest at a service's port: what has come on it, and what goes back."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import zmq

from covey.engines.transport import frames
from covey.engines.transport.inbox import Inbox, fill
from covey.engines.transport.outbox import OutgoingMessage, SendOrder
from covey.engines.transport.staging import LOOK
from covey.engines.transport.token import NONE
from covey.errors import WireError
from covey.message import Address, Message, check_finite, stamped

PIECE = 256 << 10  # bytes of a frame: on a slow link one must come before its peer is taken for frozen
BEAT = 5_000  # milliseconds between signs of life, which ZeroMQ sends
FROZEN = 30_000  # milliseconds after which a link is given up on which nothing comes


class GuestConnection:
    """A guest's messages name the role of the service that they are for, or from, by its place among these roles.

    Who the guest is, its key has proved: what a message says of its sender must agree.
    """

    def __init__(self, guest: Address, line: bytes, file: int, roles: Sequence[Address], limit: int) -> None:
        self.guest, self.line, self.file, self.roles = guest, line, file, roles
        self.inbox = Inbox([guest] * len(roles), limit)
        self.greeted = self.closed = False
        self._numbers = [0] * len(roles)  # of messages to the guest, from each of the roles

    def take(self, socket: zmq.Socket[bytes], head: bytes) -> tuple[Address, Message] | None:
        """Receive the rest of a frame; the message that it completes, and the role that it is for."""
        frame, rest = frames.read(head)
        self.inbox.admit(frame)
        message = received(self.inbox, frame, rest, socket)
        if message is None:
            return None
        to = self.roles[frame.sender]
        check_finite(message, to)
        return to, message

    def parcels(self, sender: Address, message: Message, loan: bool) -> Iterator[list[bytes | memoryview]]:
        """A message in the frames in which it travels."""
        place = self.roles.index(sender)
        number = self._numbers[place]
        self._numbers[place] += 1
        return parcels(stamped(message, sender, copy=False), place, number, loan)


def received(
    inbox: Inbox, frame: frames.Frame, rest: memoryview, socket: zmq.Socket[bytes]
) -> Message | None:
    """The message that a frame completes."""
    if frame.kind == frames.OPEN:
        return inbox.open(frame, rest)
    if frame.kind == frames.DATA:
        return fill(socket, inbox, frame)
    raise WireError(f"{inbox.book[frame.sender]} sent a frame of kind {frame.kind}, which only roles of a run send")


def parcels(message: Message, place: int, number: int, loan: bool) -> Iterator[list[bytes | memoryview]]:
    """The frames of a message: one that opens it, and pieces."""
    outgoing = OutgoingMessage(SendOrder(0, number), place, message, PIECE, loan=loan, latest=False)
    while not outgoing.ready():  # its numbers come from a GPU
        time.sleep(LOOK)
    yield [outgoing.opening(number, NONE).pack() + outgoing.head]
    while outgoing.pieces:
        yield [outgoing.prefix(NONE).pack(), outgoing.pieces[0]]
        outgoing.offset += len(outgoing.pieces.popleft())


def pieces(size: int) -> int:
    """At most how many frames a message with so many bytes of tensors has, if these are large."""
    return 2 + size // PIECE
