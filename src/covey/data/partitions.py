"""Data that stay where they are: every worker has rows of its own, and nobody has them all."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from covey.data.shards import Shards


@dataclass(frozen=True, slots=True)
class RowInfo:
    """What is known of all rows without having them."""

    counts: tuple[int, ...]  # how many each worker has
    columns: tuple[tuple[tuple[int, ...], str], ...]  # the shape and dtype of a row's part in each tensor

    def stand_in(self) -> tuple[Tensor, ...]:
        """Zeros of the same shapes that take no memory, for roles without rows: lazy modules look at them."""
        most = max(self.counts)
        return tuple(torch.zeros((), dtype=getattr(torch, dtype)).expand(most, *shape) for shape, dtype in self.columns)


@dataclass(frozen=True, slots=True)
class Partitions(Shards):
    """Which of its own rows each worker sees: epoch e is a permutation of them drawn from (seed, e, rank)."""

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
