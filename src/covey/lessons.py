"""What a replica learns from: batches of its own, and the sizes of everybody's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple


class Batch(NamedTuple):
    """What one forward and backward reports."""

    loss: float
    samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Lessons:
    """Forward and backward leave gradients in the module's parameters."""

    own: Callable[[int], Batch] | None = None  # of a step; a role that does not train has none
    chosen: Callable[[int, int, int, int], Batch] | None = None  # of a part of any worker's: (rank, step, part, parts)
    samples: Callable[[int, int], int] = lambda rank, step: 1  # in the batch of (rank, step)
    steps: Callable[[int], int] = lambda rank: 1  # batches in a pass of this rank over its data

    def together(self, ranks: Sequence[int], step: int) -> int:
        """How many samples the batches of these workers have together."""
        return _together(self.samples, tuple(ranks), step)


# In virtual time every worker asks this of all the others, at the same step.
@lru_cache(maxsize=16)
def _together(samples: Callable[[int, int], int], ranks: tuple[int, ...], step: int) -> int:
    return sum(samples(rank, step) for rank in ranks)


NONE = Lessons()
