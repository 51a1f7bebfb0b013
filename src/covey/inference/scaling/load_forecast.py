"""How many requests will come? A line through the rates of the last seconds."""

from __future__ import annotations

import math
from collections import deque

NOISE = 2.0  # standard errors within which a rise is taken for chance


class LoadForecast:
    """The rate of requests, as counts at some times tell it.

    Args:
        window: Seconds that are looked back.
    """

    def __init__(self, window: float) -> None:
        self.window = window
        self._counts: deque[tuple[float, int]] = deque()  # when, and how many had come since the beginning

    def learn(self, now: float, arrived: int) -> None:
        """So many have come until now."""
        self._counts.append((now, arrived))
        while len(self._counts) > 2 and self._counts[1][0] <= now - self.window:
            self._counts.popleft()

    def rate(self, ahead: float) -> float:
        """Requests per second, so many seconds from now; at least what has certainly come last."""
        if len(self._counts) < 2:
            return 0.0
        (begin, before), (now, arrived) = self._counts[0], self._counts[-1]
        span = now - begin
        mean, slope = (arrived - before) / span, self._slope()
        expected = mean
        # The counts of a window have the variance of Poisson's: the slope through them has that of 12 * rate / span^3.
        if abs(slope) > NOISE * math.sqrt(12 * max(mean, 1 / span) / span**3):
            expected = max(0.0, mean + slope * span / 2 + max(0.0, slope) * ahead)
        return max(expected, self._newest())

    def _slope(self) -> float:
        """Of the rates between counts, by least squares."""
        pairs = list(zip(self._counts, list(self._counts)[1:], strict=False))
        points = [((a + b) / 2, (n - m) / (b - a), b - a) for (a, m), (b, n) in pairs]
        weight = sum(length for _, _, length in points)
        middle = sum(at * length for at, _, length in points) / weight
        spread = sum((at - middle) ** 2 * length for at, _, length in points)
        return sum((at - middle) * rate * length for at, rate, length in points) / spread if spread else 0.0

    def _newest(self) -> float:
        """The rate since the last count, less what may be chance."""
        (then, before), (now, arrived) = self._counts[-2], self._counts[-1]
        came = arrived - before
        return max(0.0, came - NOISE * math.sqrt(came)) / (now - then)
