"""A stopwatch for training time: it stands still while the model is scored or a checkpoint is written."""

from __future__ import annotations

import time


class Stopwatch:
    """Seconds of training; starts and stops as often as needed."""

    __slots__ = ("_before", "_since", "started")

    def __init__(self, before: float = 0.0) -> None:
        self._before = before
        self._since: float | None = None
        self.started = False

    def start(self) -> None:
        self.started = True
        if self._since is None:
            self._since = time.monotonic()

    def stop(self) -> None:
        self._before = self.now()
        self._since = None

    def now(self) -> float:
        return self._before + (time.monotonic() - self._since if self._since is not None else 0.0)

    def at(self, moment: float) -> float:
        """A moment of the monotonic clock as training time; one before the last stop counts as the stop."""
        return self._before + (max(0.0, moment - self._since) if self._since is not None else 0.0)
