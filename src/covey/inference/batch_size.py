"""How many requests make a batch? As many as are computed in time (Crankshaw et al. 2017, Clipper, section 4.3)."""

from __future__ import annotations

STEP, BACK_OFF = 1, 0.9  # Clipper's: additive increase, and a decrease by 10 %


class AdaptiveBatchSize:
    """The most requests that a replica gets at a time, found by additive increase and multiplicative decrease.

    Args:
        budget: Seconds within which a batch must be answered.
        largest: No batch is larger.
        first: With how many to begin.
    """

    __slots__ = ("_size", "budget", "largest")

    def __init__(self, budget: float, largest: int, first: int = 1) -> None:
        self.budget, self.largest = budget, largest
        self._size = float(first)

    @property
    def now(self) -> int:
        return int(self._size)

    def learn(self, requests: int, seconds: float) -> None:
        """A batch of this many requests took that long."""
        if seconds > self.budget:
            self._size = max(1.0, self._size * BACK_OFF)
        elif requests >= self.now:  # a smaller batch says nothing of larger ones
            self._size = min(float(self.largest), self.now + STEP)
