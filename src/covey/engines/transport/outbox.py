"""What waits to leave on one link, and in which order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple

import msgspec
from torch import Tensor

from covey.engines.transport.arena import Shelf
from covey.engines.transport.frames import DATA, MAX_OPEN, OPEN, SHARED, SMALL, Frame, cut
from covey.engines.transport.staging import arrival, staged
from covey.engines.window import weight
from covey.message import Message, pack, raw

Shelve = Callable[[Sequence[Tensor], bool], Shelf | None]
"""Brings tensors, lent or not, where the receiver can read them; None when that cannot be."""


class Rank(NamedTuple):
    """What leaves first: the highest priority, then the lowest number."""

    urgency: int  # minus the priority
    number: int


class Parcel:
    """A message in its frames, as far as they have not left. Takes a copy of what it holds now, unless it is lent.

    The copy of what lies on a GPU comes by and by; until then the parcel is not ready to leave.
    """

    __slots__ = (
        "_arrival", "_header", "head", "kind", "latest", "left", "number", "offset", "pieces", "rank", "sender",
        "shelf", "weight",
    )  # fmt: skip

    def __init__(
        self, rank: Rank, sender: int, message: Message, frame: int, *, loan: bool, latest: bool,
        shelve: Shelve | None = None,
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
        self.shelf = shelve(tensors, loan) if shelve and size > SMALL else None
        if self.shelf:
            self.head += msgspec.msgpack.encode(self.shelf)
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

    def opening(self, number: int, token: bytes) -> bytes:
        """The frame that leaves first, if this is the message number `number` to leave."""
        self.number = number
        kind = SHARED if self.shelf else OPEN
        return Frame(kind, self.sender, self._header, number, 0, token).pack() + self.head

    def prefix(self, token: bytes) -> bytes:
        """What goes in front of the next piece."""
        return Frame(DATA, self.sender, len(self.pieces[0]), self.number, self.offset, token).pack()

    def __lt__(self, other: Parcel) -> bool:
        return self.rank < other.rank


class Outbox:
    """The parcels of one link: the highest priority first, then in order; a begun one can be interrupted."""

    __slots__ = ("begun", "pending", "waiting")

    def __init__(self) -> None:
        self.waiting: list[Parcel] = []  # a heap; nothing of these has left
        self.begun: list[Parcel] = []  # a stack: each one interrupted the one below
        self.pending = 0

    def put(self, parcel: Parcel) -> None:
        heappush(self.waiting, parcel)
        self.pending += parcel.left

    def withdraw(self, kind: type[Message]) -> Parcel | None:
        """Take back the parcel of this kind that was sent with `keep="latest"`, if none of it has left."""
        for parcel in self.waiting:
            if parcel.latest and parcel.kind is kind:
                self.waiting.remove(parcel)
                heapify(self.waiting)
                self.pending -= parcel.left
                return parcel
        return None

    def next(self) -> Parcel | None:
        """The parcel whose frame goes next."""
        if not self.begun:
            return self.waiting[0] if self.waiting else None
        running = self.begun[-1]
        if self.waiting and self.waiting[0].rank.urgency < running.rank.urgency and len(self.begun) < MAX_OPEN:
            return self.waiting[0]
        return running

    def opened(self, parcel: Parcel) -> None:
        """The parcel's head has left."""
        heappop(self.waiting)
        self._gone(parcel, len(parcel.head))
        parcel.head = b""
        if parcel.pieces:
            self.begun.append(parcel)

    def moved(self, parcel: Parcel) -> None:
        """The parcel's first piece has left."""
        size = len(parcel.pieces.popleft())
        self._gone(parcel, size)
        parcel.offset += size
        if not parcel.pieces:
            self.begun.pop()

    def _gone(self, parcel: Parcel, size: int) -> None:
        parcel.left -= size
        self.pending -= size
