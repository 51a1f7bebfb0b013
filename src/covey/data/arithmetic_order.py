"""The order of very many samples, by arithmetic: any position of any epoch is known at once, and none is remembered."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from math import isqrt
from typing import Any

import numpy as np
import torch
from torch import Tensor

from covey.data.shards import Shards

Positions = np.ndarray[Any, np.dtype[np.uint64]]
ROUNDS = 8
BLOCK = 4096  # positions that are worked out at once


@dataclass(frozen=True, slots=True)
class Permutation:
    """All samples of an epoch, shuffled by (seed, epoch).

    A Feistel network on pairs (left, right) of a rectangle just larger than the samples (Black and Rogaway 2002); what
    falls outside is put in again until it falls inside.

    Args:
        samples: How many there are.
        seed: The seed of all epochs.
        epoch: Which one.
    """

    samples: int
    seed: int
    epoch: int

    def at(self, positions: Positions | range) -> Positions:
        """The samples at these positions."""
        found = self._shuffled(np.asarray(positions, dtype=np.uint64))
        while len(outside := np.flatnonzero(found >= self.samples)):
            found[outside] = self._shuffled(found[outside])
        return found

    def _shuffled(self, cells: Positions) -> Positions:
        rows = isqrt(self.samples - 1) + 1
        height, width = np.uint64(rows), np.uint64(-(-self.samples // rows))
        left, right = np.divmod(cells, width)
        for number, key in enumerate(_keys(self.seed, self.epoch)):
            if number % 2:
                right = _turned(right, _mixed(left ^ key), width)
            else:
                left = _turned(left, _mixed(right ^ key), height)
        return left * width + right


@lru_cache(maxsize=64)
def _keys(seed: int, epoch: int) -> Positions:
    return np.random.SeedSequence((seed, epoch)).generate_state(ROUNDS, np.uint64).astype(np.uint64)


def _mixed(numbers: Positions) -> Positions:
    """Steele, Lea and Flood 2014: the finalizer of SplitMix64."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))


def _turned(numbers: Positions, by: Positions, modulus: np.uint64) -> Positions:
    """Add a number below the modulus that `by` stands for (Lemire 2019: its upper half says which), modulo that."""
    half = np.uint64(32)
    numbers = numbers + ((by >> half) * modulus >> half)
    return numbers - modulus * (numbers >= modulus)


@dataclass(frozen=True, slots=True)
class ArithmeticShards(Shards):
    """`Shards` whose order takes neither time nor memory before the first sample: for data sets of any length."""

    def order(self, epoch: int) -> Tensor:
        return self._samples(epoch, range(self.samples))

    def shard(self, epoch: int, rank: int) -> Tensor:
        assert 0 <= rank < self.workers, f"there is no worker {rank} of {self.workers}"
        return self._samples(epoch, range(rank, self.samples, self.workers))

    def indices(self, rank: int, step: int) -> Tensor:
        return next(self.draws(rank, step))

    def draws(self, rank: int, step: int = 0) -> Iterator[Tensor]:
        first, number = divmod(step, self.steps(rank))
        many = max(1, BLOCK // self.batch_size)
        for epoch in count(first):
            mine = range(rank, self.samples, self.workers)
            for batch in range(number, self.steps(rank), many):
                some = mine[batch * self.batch_size : (batch + many) * self.batch_size]
                yield from self._samples(epoch, some).split(self.batch_size)
            number = 0

    def _samples(self, epoch: int, positions: range) -> Tensor:
        return torch.from_numpy(Permutation(self.samples, self.seed, epoch).at(positions).astype(np.int64))


@dataclass(frozen=True, slots=True)
class GlobalBatches:
    """Batches that all readers of a data set share: batch k is the same samples for any number of readers.

    Position p of the endless sequence of samples is position p mod N of epoch p // N. Batch k has the positions k * B
    up to (k + 1) * B, also across the end of an epoch; reader r of R has its r-th part.

    Args:
        samples: The number of samples of the data set.
        batch_size: B, of all readers together.
        seed: The seed of the order.
    """

    samples: int
    batch_size: int
    seed: int = 0

    def part(self, batch: int, reader: int = 0, readers: int = 1) -> list[int]:
        """The samples of a reader in a batch."""
        first = batch * self.batch_size
        cuts = [first + self.batch_size * each // readers for each in (reader, reader + 1)]
        return self.between(*cuts)

    def between(self, first: int, last: int) -> list[int]:
        """The samples at these positions of the endless sequence."""
        found: list[int] = []
        while first < last:
            epoch, start = divmod(first, self.samples)
            stop = min(self.samples, start + last - first)
            found += Permutation(self.samples, self.seed, epoch).at(range(start, stop)).tolist()
            first += stop - start
        return found

    def parts(self, start: int = 0, reader: int = 0, readers: int = 1) -> Iterator[list[int]]:
        """The reader's part of each batch, from batch number `start` on, without end."""
        return (self.part(batch, reader, readers) for batch in count(start))
