"""How many requests at once? A store limits the rate of each, so a large read is split; the number is measured."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from itertools import pairwise

MOST = 64
GAIN = 1.15  # twice the requests must bring this much more, or there are enough
SMALLEST = 1 << 18  # bytes of a range: below, a request costs more than it brings
PROBES = 8  # reads with the best number before a larger one is tried again


def split(start: int, stop: int, parts: int, smallest: int = SMALLEST) -> list[tuple[int, int]]:
    """Nearly equal ranges, as many as that or as are worth it."""
    parts = max(1, min(parts, (stop - start) // smallest))
    cuts = [start + (stop - start) * part // parts for part in range(parts + 1)]
    return list(pairwise(cuts))


@dataclass(slots=True)
class RequestCount:
    """The number of requests at once that has brought most bytes per second so far.

    It doubles as long as that brings clearly more. Then it stays, and now and then a larger one is tried again, as the
    limits of a store change. (Ozeri et al. 2018: a request brings 35 MB/s, 17 of them what four GPUs need.)
    """

    count: int = 1
    best: int = 1
    rate: float = 0.0  # bytes per second with the best number
    waited: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def measured(self, requests: int, size: int, seconds: float) -> None:
        """That many requests at once brought so many bytes."""
        rate = size / max(seconds, 1e-9)
        with self.lock:
            if requests != self.count:
                return  # it was too small to be split so far, and says nothing about that
            if requests == self.best:
                self.rate = rate if not self.rate else (self.rate + rate) / 2
                self.waited += 1
                if self.waited == 1 or self.waited > PROBES:
                    self.count = min(MOST, 2 * self.best)
            elif rate >= GAIN * self.rate:
                self.best, self.rate, self.count = requests, rate, min(MOST, 2 * requests)
                self.waited = 1
            else:
                self.count, self.waited = self.best, 1
