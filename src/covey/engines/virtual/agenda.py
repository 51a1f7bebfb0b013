"""The agenda of virtual time: due events, in order."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import Any

Due = tuple[float, int, Callable[[Any, Any], None], Any, Any]
"""When, the order of asking (which breaks ties), and what to call with which two things."""


class Agenda:
    """A clock that jumps from one event to the next."""

    __slots__ = ("_serial", "due", "now")

    def __init__(self) -> None:
        self.now = 0.0
        self.due: list[Due] = []
        self._serial = count()

    def at(self, when: float, act: Callable[[Any, Any], None], subject: Any, value: Any = None) -> None:
        """Call `act(subject, value)` when its time has come."""
        assert when >= self.now, f"an event at {when} s, and it is {self.now} s already"
        heappush(self.due, (when, next(self._serial), act, subject, value))

    def step(self) -> None:
        """Let the next event happen."""
        self.now, _, act, subject, value = heappop(self.due)
        act(subject, value)
