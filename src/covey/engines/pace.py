"""Which step does a worker take next, and where must it stop or hold?"""

from __future__ import annotations

from math import inf
from typing import Any

from covey.membership import BatchesLeft
from covey.program import Effect, Receive


class Pace:
    """Counts a worker's steps, which are numbered from 0, and knows where it must stop or hold."""

    __slots__ = ("_end", "_stop_at", "hold_at", "limit", "step")

    def __init__(self, limit: int | None, done: int = 0) -> None:
        self.step = done - 1
        self.limit = limit
        self.stop_at = None
        self.hold_at: int | None = None

    @property
    def stop_at(self) -> int | None:
        """The step before which it must stop."""
        return self._stop_at

    @stop_at.setter
    def stop_at(self, step: int | None) -> None:
        self._stop_at = step
        self._end = min(inf if self.limit is None else self.limit, inf if step is None else step)

    @property
    def next(self) -> int:
        """The number of the step that the next `training` would begin."""
        return self.step + 1

    def training(self) -> bool:
        self.step = step = self.step + 1
        return step < self._end

    def over(self, step: int) -> bool:
        return step >= self._end

    def holds(self) -> bool:
        """Whether the program, having asked `training`, waits here until it is released."""
        return self.hold_at is not None and self.step >= self.hold_at and not self.over(self.step)


def rests(effect: Effect[Any] | None) -> bool:
    """Whether a worker that has no batch waits until there is one: nothing of it moves meanwhile."""
    return isinstance(effect, Receive) and BatchesLeft in effect.kinds
