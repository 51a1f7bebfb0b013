"""Data in an order of the user's own: a sampler says which samples a pass has, and all workers draw the same."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from numbers import Integral
from typing import Any, Protocol, cast

import numpy as np
import torch
from torch import Tensor

from covey.data.seeded_draws import SeededDraws, mixed
from covey.data.shards import Shards, permutation
from covey.errors import PlanError
from covey.faults import in_task
from covey.task.arguments import describe


class SizedSampler(Hashable, Protocol):
    """As torch's samplers have it."""

    def __iter__(self) -> Iterator[int]: ...

    def __len__(self) -> int: ...


@dataclass(frozen=True, slots=True)
class SampledShards(Shards):
    """Which samples each worker sees, when a sampler chooses them or a pass leaves out what makes no whole batch.

    Args:
        sampler: Gives the samples of a pass; None: a permutation of all.
        held: The number of samples that the data has.
    """

    sampler: SizedSampler | None = None
    held: int = 0

    @classmethod
    def of(
        cls, held: int, sampler: Iterable[int] | None, drop_last: bool, workers: int, batch_size: int, seed: int
    ) -> SampledShards:  # fmt: skip
        given = cast(SizedSampler | None, sampler if isinstance(sampler, Hashable) else tuple(sampler))
        samples = held if given is None else len(given)
        if not samples:
            raise PlanError("Task: sampler has a length of 0: it must give at least one sample in a pass")
        if drop_last and not (samples := samples - samples % (workers * batch_size)):
            raise PlanError(
                f"Task: drop_last leaves nothing of a pass, which has fewer than {workers} x {batch_size} samples: "
                "use smaller batches or fewer workers"
            )
        return cls(samples, workers, batch_size, seed, given, held)

    @property
    def length(self) -> int | None:
        return self.held

    def order(self, epoch: int) -> Tensor:
        if self.sampler is None:
            return permutation(self.held, self.seed, epoch)[: self.samples]
        return _drawn(self.sampler, self.held, self.seed, epoch)[: self.samples]


@lru_cache(maxsize=8)
def _drawn(sampler: SizedSampler, held: int, seed: int, epoch: int) -> Tensor:
    """What the sampler gives for a pass: the same in every process, as its chance comes from the seed and the pass."""
    with in_task("sampler"), SeededDraws(mixed(seed, epoch), [getattr(sampler, "generator", None)]):
        if hasattr(sampler, "set_epoch"):
            sampler.set_epoch(epoch)
        numbers = torch.tensor([_index(number) for number in sampler], dtype=torch.long)
    if len(numbers) != len(sampler):
        raise PlanError(
            f"Task: len(sampler) is {len(sampler)}, but it gave {len(numbers)} samples in pass {epoch}; "
            "a sampler must give as many in every pass"
        )
    if len(numbers) and not 0 <= int(numbers.min()) <= int(numbers.max()) < held:
        given = f"{numbers.min()} to {numbers.max()}"
        raise PlanError(f"Task: the sampler gave {given} in pass {epoch}; data has 0 to {held - 1}")
    return numbers


def _index(number: Any) -> int:
    """A sample's number; a mask, or a fraction, would be rounded to the numbers of other samples."""
    value = number.item() if isinstance(number, Tensor) and number.numel() == 1 else number
    if not isinstance(value, Integral) or isinstance(value, bool | np.bool_):
        raise PlanError(
            f"Task: the sampler must give numbers of samples, and it gave {describe(number)}: of a mask give the "
            "places, mask.nonzero().flatten().tolist()"
        )
    return int(value)
