"""The agenda of virtual time: due events, in order."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from heapq import heappop, heappush
from itertools import count
from typing import Any

Due = tuple[float, int, Callable[[Any, Any], None], Any, Any]
"""When, the order of asking (which breaks ties), and what to call with which two things."""

MANY = 1_000  # roles, or guests


class Agenda:
    """A clock that jumps from one event to the next."""

    __slots__ = ("due", "now", "outside", "serial")

    def __init__(self, now: float = 0.0) -> None:
        self.now = now
        self.due: list[Due] = []
        self.outside = 0  # of the due events, those that come from outside
        self.serial = count()  # of the events, in the order of asking

    def at(self, when: float, act: Callable[[Any, Any], None], subject: Any, value: Any = None) -> None:
        """Call `act(subject, value)` when its time has come."""
        assert when >= self.now, f"an event at {when} s, and it is {self.now} s already"
        heappush(self.due, (when, next(self.serial), act, subject, value))

    def from_outside(self, when: float, act: Callable[[Any, Any], None], subject: Any, value: Any = None) -> None:
        """The same for what comes from outside, such as a fault: when nothing else is due, the run stands still."""
        self.outside += 1
        self.at(when, self._came, act, (subject, value))

    def _came(self, act: Callable[[Any, Any], None], given: tuple[Any, Any]) -> None:
        self.outside -= 1
        act(*given)

    @property
    def still(self) -> bool:
        """Whether nothing more will happen by itself."""
        return len(self.due) == self.outside

    def step(self) -> None:
        """Let the next event happen."""
        self.now, _, act, subject, value = heappop(self.due)
        act(subject, value)


@contextmanager
def few_collections(roles: int) -> Iterator[None]:
    """Of many roles nothing is garbage before the run ends: meanwhile the collector passes over all that is there."""
    if roles >= MANY:
        gc.freeze()
    try:
        yield
    finally:
        if roles >= MANY:
            gc.unfreeze()
