"""The messages that wait to leave on one link, and their order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple

import msgspec
from torch import Tensor

from covey.engines.transport.frames import DATA, MAX_OPEN, OPEN, SHARED, SMALL, Frame, cut
from covey.engines.transport.shared.blocks import TensorPlaces
from covey.engines.transport.staging import arrival, staged
from covey.engines.window import weight
from covey.message import Message, pack, raw

Shelve = Callable[[Sequence[Tensor], bool], TensorPlaces | None]
"""Brings tensors, lent or not, where the receiver can read them; None when that cannot be."""


class SendOrder(NamedTuple):
    """What leaves first: the highest priority, then the lowest number."""

    urgency: int  # minus the priority
    number: int


class OutgoingMessage:
    """A message in its frames, as far as they have not left. Takes a copy of what it holds now, unless it is lent.

    The copy of what lies on a GPU comes by and by; until then the parcel is not ready to leave.
    """

    __slots__ = (
        "_arrival",
        "_header",
        "head",
        "kind",
        "latest",
        "left",
        "number",
        "offset",
        "pieces",
        "places",
        "rank",
        "sender",
        "weight",
    )  # fmt: skip

    def __init__(
        self, rank: SendOrder, sender: int, message: Message, frame: int, *, loan: bool, latest: bool,
        place_tensors: Shelve | None = None,
    ) -> None:  # fmt: skip
        header, tensors = pack(message)
        size = sum(tensor.nbytes for tensor in tensors)
        self.rank = rank
        self.sender = sender
        self.kind = type(message)
        self.weight = weight(message)
        self.latest = latest
        self.number = 0  # on the wire; known when it leaves
        self._header = len(header)
        self.head = header
        self.pieces: deque[memoryview | bytes] = deque()
        self.offset = 0
        self.places = place_tensors(tensors, loan) if place_tensors and size > SMALL else None
        if self.places:
            self.head += msgspec.msgpack.encode(self.places)
        elif size <= SMALL:
            self.head += b"".join([raw(tensor) for tensor in tensors])
        else:
            # Copied piece by piece into memory of Python's: a piece is free again as soon as it has left. Tensors would
            # be freed by pyzmq's thread, and torch's allocator gives such memory back to this one only much later.
            for tensor in tensors:
                lent = loan or tensor.is_cuda  # what is staged is a copy already
                self.pieces.extend(piece if lent else bytes(piece) for piece in cut([staged(tensor)], frame))
        self._arrival = arrival(tensors, size) if size > SMALL else None
        self.left = len(self.head) + sum(map(len, self.pieces))

    def ready(self) -> bool:
        """Whether all its bytes are there."""
        if self._arrival is not None and self._arrival.query():
            self._arrival = None
        return self._arrival is None

    def opening(self, number: int, token: bytes, incarnation: int = 0) -> Frame:
        """What goes in front of `head`, which leaves first, if this is the message number `number` to leave."""
        self.number = number
        kind = SHARED if self.places else OPEN
        return Frame(kind, self.sender, self._header, number, 0, token, incarnation)

    def prefix(self, token: bytes, incarnation: int = 0) -> Frame:
        """What goes in front of the next piece."""
        return Frame(DATA, self.sender, len(self.pieces[0]), self.number, self.offset, token, incarnation)

    def __lt__(self, other: OutgoingMessage) -> bool:
        return self.rank < other.rank


class Outbox:
    """The parcels of one link: the highest priority first, then in order; a begun one can be interrupted."""

    __slots__ = ("begun", "pending", "waiting")

    def __init__(self) -> None:
        self.waiting: list[OutgoingMessage] = []  # a heap; nothing of these has left
        self.begun: list[OutgoingMessage] = []  # a stack: each one interrupted the one below
        self.pending = 0

    def put(self, outgoing: OutgoingMessage) -> None:
        heappush(self.waiting, outgoing)
        self.pending += outgoing.left

    def withdraw(self, kind: type[Message]) -> OutgoingMessage | None:
        """Take back the parcel of this kind that was sent with `keep="latest"`, if none of it has left."""
        for outgoing in self.waiting:
            if outgoing.latest and outgoing.kind is kind:
                self.waiting.remove(outgoing)
                heapify(self.waiting)
                self.pending -= outgoing.left
                return outgoing
        return None

    def next(self) -> OutgoingMessage | None:
        """The parcel whose frame goes next."""
        if not self.begun:
            return self.waiting[0] if self.waiting else None
        running = self.begun[-1]
        if self.waiting and self.waiting[0].rank.urgency < running.rank.urgency and len(self.begun) < MAX_OPEN:
            return self.waiting[0]
        return running

    def opened(self, outgoing: OutgoingMessage) -> None:
        """The parcel's head has left."""
        heappop(self.waiting)
        self._gone(outgoing, len(outgoing.head))
        outgoing.head = b""
        if outgoing.pieces:
            self.begun.append(outgoing)

    def moved(self, outgoing: OutgoingMessage) -> None:
        """The parcel's first piece has left."""
        size = len(outgoing.pieces.popleft())
        self._gone(outgoing, size)
        outgoing.offset += size
        if not outgoing.pieces:
            self.begun.pop()

    def _gone(self, outgoing: OutgoingMessage, size: int) -> None:
        outgoing.left -= size
        self.pending -= size
