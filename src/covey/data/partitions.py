"""Data that stays where it is: every worker has rows of its own, and no role has them all."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from covey.data.shards import Shards


@dataclass(frozen=True, slots=True)
class RowInfo:
    """The number and the shapes of rows that other machines hold.

    Args:
        counts: The number of rows of each worker.
        columns: For each tensor of a row, its shape and its dtype.
    """

    counts: tuple[int, ...]
    columns: tuple[tuple[tuple[int, ...], str], ...]

    def stand_in(self) -> tuple[Tensor, ...]:
        """Zeros of the same shapes that take no memory, for roles without rows: lazy modules look at them."""
        most = max(self.counts)
        return tuple(torch.zeros((), dtype=getattr(torch, dtype)).expand(most, *shape) for shape, dtype in self.columns)


@dataclass(frozen=True, slots=True)
class Partitions(Shards):
    """Which of its own rows each worker sees: epoch e is a permutation of them drawn from (seed, e, rank).

    Args:
        counts: The number of rows of each worker; `Partitions.of(counts, batch_size, seed)` fills in the rest.
    """

    counts: tuple[int, ...] = ()

    @classmethod
    def of(cls, counts: tuple[int, ...], batch_size: int, seed: int) -> Partitions:
        assert counts[0] == max(counts), "worker 0 ends last: it leads, and is scored where all models are the same"
        return cls(sum(counts), len(counts), batch_size, seed, counts)

    @property
    def length(self) -> int | None:
        return None

    def shard(self, epoch: int, rank: int) -> Tensor:
        return _permutation(self.counts[rank], self.seed, epoch, rank)

    def size(self, rank: int) -> int:
        return self.counts[rank]


@lru_cache(maxsize=8)
def _permutation(samples: int, seed: int, epoch: int, rank: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng((seed, epoch, rank)).permutation(samples))
