"""A stopwatch for training time, which stops while the model is scored or a checkpoint is written."""

from __future__ import annotations

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

    __slots__ = ("_before", "_owed", "_since", "started")

    def __init__(self, before: float = 0.0) -> None:
        self._before = before
        self._since: float | None = None
        self._owed = 0.0  # seconds that it had still stood still when it was stopped
        self.started = False

    def reach(self, seconds: float) -> None:
        """So much has passed before it is first started."""
        self._before = max(self._before, seconds)

    def start(self, later: float = 0.0) -> None:
        """From now on, or from this number of seconds later."""
        self.started = True
        if self._since is None:
            self._since = time.monotonic() + later + self._owed

    def stop(self) -> None:
        now = time.monotonic()
        self._before = self.at(now)
        self._owed = max(0.0, self._since - now) if self._since is not None else self._owed
        self._since = None

    def skip(self, seconds: float) -> None:
        """The given seconds, which have just passed, were not training."""
        if self._since is not None:
            self._since += seconds

    def now(self) -> float:
        return self.at(time.monotonic())

    def at(self, moment: float) -> float:
        """A moment of the monotonic clock as training time; one before the last start counts as the start."""
        return self._before + (max(0.0, moment - self._since) if self._since is not None else 0.0)
