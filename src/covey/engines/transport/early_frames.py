"""Frames of a restarted peer that come before this role has heard of the restart: they wait for that."""

from __future__ import annotations

from typing import NamedTuple

from covey.engines.transport.frames import Frame

MOST = 256  # frames that wait


class EarlyFrame(NamedTuple):
    """A frame whose sender is in a later incarnation than this role knows, and what followed its prefix."""

    frame: Frame
    rest: bytes | memoryview
    body: bytes | None  # of a frame that has its bytes in a piece of its own


class EarlyFrames:
    """What waits, in the order in which it came, up to `limit` bytes."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.waiting: list[EarlyFrame] = []
        self.nbytes = 0

    def keep(self, early: EarlyFrame) -> bool:
        """Whether there is room for it."""
        size = len(early.rest) + len(early.body or b"")
        if len(self.waiting) >= MOST or self.nbytes + size > self.limit:
            return False
        self.waiting.append(early)
        self.nbytes += size
        return True

    def of(self, sender: int) -> list[EarlyFrame]:
        """Take out what waits of this sender."""
        found = [early for early in self.waiting if early.frame.sender == sender]
        self.waiting = [early for early in self.waiting if early.frame.sender != sender]
        self.nbytes -= sum(len(early.rest) + len(early.body or b"") for early in found)
        return found
