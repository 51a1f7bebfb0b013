"""A leaky bucket: bytes that left a link drain at a fixed rate, and the next frame waits until it is empty."""

from __future__ import annotations

import time

PIECE = 0.02  # seconds that a frame should take at the rate that is allowed
SMALLEST = 16 << 10  # bytes of a frame
LATE = 0.005  # seconds by which a busy role may come late, and make up for it


class LeakyBucket:
    """Over any time at most `rate` times that time leaves, and one frame (and what could have left in 5 ms) more."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self._level, self._at = 0.0, time.monotonic()

    def pause(self) -> float:
        """Seconds until the next frame may leave."""
        now = time.monotonic()
        self._level = max(-LATE * self.rate, self._level - (now - self._at) * self.rate)
        self._at = now
        return max(0.0, self._level / self.rate)

    def pour(self, size: int) -> None:
        self._level += size


def frame_at(rate: float, frame: int) -> int:
    """The size of frames on a link of this rate: small ones, which a higher priority can overtake soon."""
    return min(frame, max(SMALLEST, int(rate * PIECE)))
