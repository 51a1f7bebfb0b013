"""One direction between two roles of a host, in memory that both map: a few places for small frames.

Two semaphores count the places that are free and those that are filled, so neither end looks at a place before the
other has done with it.
"""

from __future__ import annotations

import mmap
from struct import Struct
from typing import NamedTuple

from covey.engines.transport.shared.semaphore import SIZE, Semaphore
from covey.errors import WireError

PLACES = 4  # what lies here can no longer be overtaken, so there are few
PLACE = 36 << 10  # bytes: numbers that travel in one piece with their header, and the header
LANE = 2 * SIZE + PLACES * PLACE

_head = Struct("<IQ")


class LaneFrame(NamedTuple):
    """A frame, and how many of its link had left by the socket before it."""

    before: int
    data: bytes


class Lane:
    """One end of a lane that lies at `offset` of memory."""

    __slots__ = ("_come", "_filled", "_free", "_next", "_places", "count")

    def __init__(self, memory: mmap.mmap, offset: int) -> None:
        self._free, self._filled = Semaphore(memory, offset), Semaphore(memory, offset + SIZE)
        places = memoryview(memory)[offset + 2 * SIZE : offset + LANE]
        self._places = [places[number * PLACE : (number + 1) * PLACE] for number in range(PLACES)]
        self._next, self._come = 0, self._filled.take
        self.count = self._filled.count  # of the frames that have come

    def clear(self) -> None:
        """Begin with all places free; before anybody else knows it."""
        self._free.clear()
        self._filled.clear()
        for _ in range(PLACES):
            self._free.give()

    def put(self, data: bytes, before: int) -> bool:
        """Whether the frame is short enough, and a place is free for it."""
        end = _head.size + len(data)
        if end > PLACE or not self._free.take():
            return False
        place = self._places[self._next]
        _head.pack_into(place, 0, len(data), before)
        place[_head.size : end] = data
        self._next = (self._next + 1) % PLACES
        self._filled.give()
        return True

    def take(self) -> LaneFrame | None:
        """The next frame, if it has come."""
        if not self._come():
            return None
        place = self._places[self._next]
        size, before = _head.unpack_from(place)
        if size > PLACE - _head.size:
            raise WireError(f"a frame of {size} bytes is refused: a lane's have at most {PLACE - _head.size}")
        data = place[_head.size : _head.size + size].tobytes()
        self._next = (self._next + 1) % PLACES
        self._free.give()
        return LaneFrame(before, data)
