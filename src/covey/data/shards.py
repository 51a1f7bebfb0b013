"""Which worker sees which sample when: arithmetic on indices, without touching a sample."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import count

import numpy as np
import torch
from torch import Tensor

from covey.errors import PlanError


@dataclass(frozen=True, slots=True)
class Shards:
    """Which samples each worker sees: epoch e is a permutation drawn from (seed, e), dealt out one by one.

    Args:
        samples: The number of samples.
        workers: The number of workers.
        batch_size: The number of samples in a batch of one worker.
        seed: The seed of the permutations.
    """

    samples: int
    workers: int
    batch_size: int
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("samples", 1), ("workers", 1), ("batch_size", 1), ("seed", 0)):
            if (value := getattr(self, name)) < least:
                raise PlanError(f"{name} must be at least {least}, not {value}")
            if value >= 1 << 63:
                raise PlanError(f"{name} must be below 2**63, not {value}")
        if self.workers > self.samples:
            raise PlanError(
                f"{self.samples} samples are too few for {self.workers} workers: one would get none; "
                f"use at most {self.samples} workers, or more data"
            )

    @property
    def length(self) -> int | None:
        """How long the data must be, where every worker has all of it."""
        return self.samples

    def order(self, epoch: int) -> Tensor:
        """The samples of an epoch in the order in which they are dealt; read it, do not write it."""
        return permutation(self.samples, self.seed, epoch)

    def shard(self, epoch: int, rank: int) -> Tensor:
        """The samples of one worker in an epoch."""
        assert 0 <= rank < self.workers, f"there is no worker {rank} of {self.workers}"
        # Dealt one by one, n workers with batches of b see together what one worker sees with batches of n * b.
        return self.order(epoch)[rank :: self.workers]

    def size(self, rank: int) -> int:
        """How many samples one worker sees in an epoch."""
        return len(range(rank, self.samples, self.workers))

    def steps(self, rank: int) -> int:
        """How many batches one worker sees in an epoch; the last may be short."""
        return -(-self.size(rank) // self.batch_size)

    def indices(self, rank: int, step: int) -> Tensor:
        """The samples of a worker's batch number `step`, counted from 0 across epochs."""
        epoch, number = divmod(step, self.steps(rank))
        return self.shard(epoch, rank)[number * self.batch_size : (number + 1) * self.batch_size]

    def draws(self, rank: int, step: int = 0) -> Iterator[Tensor]:
        """`indices` from a step on, without end: the fast way through an epoch."""
        first, number = divmod(step, self.steps(rank))
        for epoch in count(first):
            yield from self.shard(epoch, rank).contiguous().split(self.batch_size)[number:]
            number = 0

    def batch(self, rank: int, step: int) -> int:
        """How many samples that batch has."""
        number = step % self.steps(rank)
        return min(self.batch_size, self.size(rank) - number * self.batch_size)


@dataclass(frozen=True, slots=True)
class StretchedShards(Shards):
    """As if every worker had whole batches: samples come more than once in an epoch, where only time counts."""

    real: int = 1  # samples that there are

    @property
    def length(self) -> int | None:
        return self.real

    def order(self, epoch: int) -> Tensor:
        return permutation(self.samples, self.seed, epoch) % self.real


# All workers of a simulation share this process; they are rarely more than a few epochs apart.
@lru_cache(maxsize=8)
def permutation(samples: int, seed: int, epoch: int) -> Tensor:
    """All samples of an epoch, shuffled."""
    return torch.from_numpy(np.random.default_rng((seed, epoch)).permutation(samples))


_sums: dict[int, tuple[Callable[[int, int], int], int, tuple[int, ...], int]] = {}  # of the last 16 steps


def samples_together(samples: Callable[[int, int], int], ranks: tuple[int, ...], step: int) -> int:
    """How many samples the batches of these workers have together; `samples` says it of (rank, step).

    By the identity of the ranks: in virtual time every worker asks, and comparing or hashing them takes long.
    """
    found = _sums.get(step % 16)
    if found is None or found[:2] != (samples, step) or not (found[2] is ranks or found[2] == ranks):
        found = samples, step, ranks, sum(samples(rank, step) for rank in ranks)
        _sums[step % 16] = found
    return found[3]
