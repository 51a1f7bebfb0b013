"""A stopwatch for training time, which stops while the model is scored or a checkpoint is written."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LostAttempt:
    """A run that failed and starts again: at which moment of the monotonic clock, and after how much training."""

    moment: float
    clock: float
    scored: int = -1  # the samples up to which its scores were told


class Stopwatch:
    """Seconds of training; starts and stops as often as needed."""

    __slots__ = ("_before", "_owed", "_ran", "_since", "started")

    def __init__(self, before: float = 0.0) -> None:
        self._before = before
        self._since: float | None = None
        self._owed = 0.0  # seconds that it had still stood still when it was stopped
        self._ran: list[tuple[float, float, float]] = []  # begin and end by the monotonic clock, seconds at the begin
        self.started = False

    def reach(self, seconds: float) -> None:
        """This much has passed before it is first started."""
        self._before = max(self._before, seconds)

    def start(self, later: float = 0.0) -> None:
        """From now on, or from this number of seconds later."""
        self.started = True
        if self._since is None:
            self._since = time.monotonic() + later + self._owed
            self._ran.append((self._since, math.inf, self._before))

    def stop(self) -> None:
        now = time.monotonic()
        if self._since is not None:
            self._end(now)
        self._before = self.at(now)
        self._owed = max(0.0, self._since - now) if self._since is not None else self._owed
        self._since = None

    def skip(self, seconds: float) -> None:
        """The given seconds, which have just passed, were not training."""
        if self._since is not None:
            now = time.monotonic()
            self._end(now - seconds)
            self._since += seconds
            self._ran.append((now, math.inf, self.at(now)))

    def now(self) -> float:
        return self.at(time.monotonic())

    def at(self, moment: float) -> float:
        """A moment of the monotonic clock as training time; one before the last start counts as the start."""
        return self._before + (max(0.0, moment - self._since) if self._since is not None else 0.0)

    def then(self, moment: float) -> float | None:
        """A moment of the monotonic clock, however long ago, as training time; None if it stood still then."""
        found = ((begin, before) for begin, end, before in reversed(self._ran) if begin <= moment <= end)
        return next((before + moment - begin for begin, before in found), None)

    @property
    def zero(self) -> float | None:
        """The moment of the monotonic clock at which it would have begun with 0; None before it was started."""
        return self._ran[0][0] - self._ran[0][2] if self._ran else None

    def _end(self, moment: float) -> None:
        begin, _, before = self._ran[-1]
        self._ran[-1] = begin, moment, before
