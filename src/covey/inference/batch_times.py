"""How long does a replica take for a batch? Measured for some sizes, and on lines between them for the others."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class BatchTimes:
    """Seconds that batches of some sizes take; those of other sizes lie on lines between them."""

    sizes: Sequence[int]
    seconds: Sequence[float]

    def __call__(self, size: int) -> float:
        at = min(bisect_left(self.sizes, size), len(self.sizes) - 1)
        if at == 0 or self.sizes[at] == size:
            return self.seconds[at]
        low, high = self.sizes[at - 1], self.sizes[at]
        slope = (self.seconds[at] - self.seconds[at - 1]) / (high - low)
        return self.seconds[at - 1] + slope * (size - low)

    def largest_within(self, budget: float, most: int) -> int:
        """The largest batch that takes at most this long; at least 1."""
        return next((size for size in range(most, 1, -1) if self(size) <= budget), 1)

    def rate(self, budget: float, most: int, delay: float = 0.0) -> float:
        """Requests per second in batches of that size, each of which takes `delay` longer than was measured."""
        size = self.largest_within(budget - delay, most)
        return size / max(1e-6, self(size) + delay)


def resized(example: Tensor, size: int) -> Tensor:
    """A batch of this many inputs, which are those of the example again and again."""
    return torch.cat([example] * -(-size // len(example)))[:size]
