"""Which of a role's two threads drives it: the driver's own, or the compute thread while its work is brief.

To hand work to another thread, and its result back, wakes a thread each time, and both want Python's lock. So with
brief work goes the turn to drive: the compute thread does the work, and drives on. If the work takes longer than was
expected the driver's thread takes the turn meanwhile. All of the user's code stays on one thread.
"""

from __future__ import annotations

import time
from collections import deque
from threading import Semaphore

DRIVER = "driver"  # the name of the driver's own thread
BRIEF = 0.02  # seconds of work, as long as between two reports; nobody listens for twice that, at most


class DrivingTurn:
    """Of the two threads the one that has it drives; while brief work runs neither has it."""

    def __init__(self) -> None:
        self._free: deque[float] = deque(maxlen=1)  # since when neither has it
        self._calls, self._lays = Semaphore(0), Semaphore(0)
        self._laid = 0  # how often
        self._resting = False  # the driver's thread sleeps until it is laid

    def lay(self) -> None:
        """Whoever has it has it no longer."""
        while self._calls.acquire(blocking=False):
            pass  # a call before the turn was taken for having been free too long
        self._laid += 1
        self._free.append(time.monotonic())
        if self._resting:
            self._lays.release()

    def take(self) -> bool:
        """Whether nobody had it; only one of two threads that ask at once is told so."""
        try:
            self._free.pop()
        except IndexError:
            return False
        return True

    def call(self) -> None:
        """Let the driver's thread take it at once, if nobody has it."""
        if self._free:
            self._calls.release()

    def wait(self) -> None:
        """(Driver's thread) Take it when called, or when nobody has had it for too long."""
        while True:
            laid, called = self._laid, self._calls.acquire(timeout=self._left())
            if (called or self._left() <= 0) and self.take():
                return
            if not called and laid == self._laid:
                self._rest()

    def _rest(self) -> None:
        """(Driver's thread) Sleep until it is laid.

        A role whose program is stuck then uses no CPU, by which the launcher sees that it is unresponsive.
        """
        self._resting = True
        if not self._free:
            self._lays.acquire()  # one that is left from earlier only makes it look once more
        self._resting = False

    def _left(self) -> float:
        """Seconds until nobody has had it for too long, at the earliest."""
        try:
            return max(0.0, self._free[0] + BRIEF - time.monotonic())
        except IndexError:  # somebody has it
            return BRIEF
