"""When is the next checkpoint due? After a fixed time, or as often as costs at most a small share of the wall time."""

from __future__ import annotations

import os
from math import inf

from covey.names import option

SHARE = 0.03  # of the wall time that checkpoints may cost with `auto`: below the 3.5 % that are promised
LEAST = 1.0  # seconds between two, with `auto`
COPY = 0.5e-9  # seconds for a byte of a role's state, before one has been measured
PAUSE = 0.05  # seconds until all roles stand still, before that has been measured


class Interval:
    """`every` is the number of seconds between checkpoints; None chooses it from what they cost (`auto`)."""

    def __init__(self, every: float | None) -> None:
        self.every = every
        self.begun = self.kept = 0.0  # moments of the monotonic clock
        self.spent = 0.0  # seconds of wall time that checkpoints have cost
        self.cost = 0.0  # what the next one is expected to cost
        self._paused = self._worked = 0.0  # of the newest: the pause, and seconds of CPU that were spent on writing
        self._said = inf
        self.cores = len(os.sched_getaffinity(0))

    def begin(self, now: float, size: float) -> None:
        """Training begins, with states of this many bytes in a role."""
        self.begun = self.kept = now
        self.cost = PAUSE + size * COPY

    def due(self, now: float) -> bool:
        if self.every is not None:
            return now - self.kept > self.every
        affordable = self.spent + self.cost <= SHARE * (now - self.begun)
        return affordable and now - self.kept > LEAST

    def stood_still(self, seconds: float, now: float) -> None:
        """A copy was made, for which training paused."""
        self.kept, self._paused, self._worked = now, seconds, 0.0
        self.spent += seconds

    def wrote(self, cpu: float) -> None:
        """Somebody has spent this much CPU time on writing; where all cores are busy, training had to wait for it."""
        self._worked += cpu
        self.spent += cpu / self.cores
        self.cost = self._paused + self._worked / self.cores

    @property
    def chosen(self) -> float:
        """Seconds from one to the next, at what they cost now."""
        return max(LEAST, self.cost / SHARE) if self.every is None else self.every

    def news(self) -> str:
        """Which interval was chosen, when that is new or has changed by half; else nothing."""
        if self.every is not None or 0.67 < self.chosen / self._said < 1.5:
            return ""
        self._said = self.chosen
        chosen, cost = f"{self.chosen:.2g}", f"{self.cost:.2g}"
        return f"{option('every', 'auto')}: a checkpoint about every {chosen} s, as each costs {cost} s of training"

    def __str__(self) -> str:
        return f"in {self.chosen:.3g} s"
