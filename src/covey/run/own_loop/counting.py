"""How many samples a step of the user's own loop has, on this worker and on all of them."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from covey.errors import PlanError
from covey.run.own_loop.loading import Sizes, watch


@dataclass(frozen=True, slots=True)
class StepSamples:
    """The samples of one step; `divided`: workers are known to have different ones."""

    mine: int
    everybody: int | None  # None: the others must be asked
    divided: bool
    alike: bool  # every batch of it counts the same on all workers


class LoaderCounts:
    """What was pulled from loaders since the last step, and what the models were given."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._last: StepSamples | None = None  # of the last step, where its batches came from loaders
        self.begin()

    def begin(self) -> None:
        """Another step begins."""
        self._mine: int | None = 0
        self._everybody: int | None = 0
        self._pulled, self._alike = 0, True
        self._given = self._looked = 0
        self._told = False  # the samples of a batch are known

    def pulled(self, sizes: Sizes) -> None:
        """A batch comes from a loader; one that is only looked at, without gradients, is of no step."""
        if not torch.is_grad_enabled():
            return
        self._pulled += 1
        self._mine = None if self._mine is None or sizes.mine is None else self._mine + sizes.mine
        known = self._everybody is not None and sizes.everybody is not None and sizes.mine is not None
        self._everybody = self._everybody + sizes.everybody if known else None  # type: ignore[operator]
        self._alike = self._alike and known and sizes.everybody == sizes.mine * self.workers  # type: ignore[operator]

    def looked(self, samples: int) -> None:
        """A model is given samples; several may be given the same ones."""
        self._looked = max(self._looked, samples)

    def add(self, samples: int | None) -> None:
        """One of several batches of a step is through, of as many samples as the loop says or models were given."""
        self._told = self._told or samples is not None
        self._given, self._looked = self._given + (self._looked if samples is None else checked(samples)), 0

    @property
    def weight(self) -> float:
        """What this worker's samples count, as far as they are known yet; 1 is as much as the others'."""
        return self._mine * self.workers / self._everybody if self._mine and self._everybody else 1.0

    def take(self, samples: int | None) -> StepSamples:
        """The step's samples, where they can be found; the loop may give them."""
        if samples is None and self._last and not (self._pulled or self._looked or self._given or self._told):
            return self._last  # another optimizer steps on the same batches
        self.add(samples)
        mine = self._given if self._told or not self._pulled or self._mine is None else self._mine
        if not self._told and not mine:
            raise PlanError(
                "member.step cannot see how many samples this step has: take batches from member.loader(loader) or "
                "member.shard(data, batch_size), or say it, member.step(loss, samples=n)"
            )
        everybody = self._everybody if self._pulled and mine == self._mine else None
        alike = everybody is None or self._alike or self._pulled == 1
        counted = StepSamples(mine, everybody, bool(self._pulled) or self._told, alike)
        self._last = counted if self._pulled else None
        self.begin()
        return counted

    def skip(self, samples: int | None) -> None:
        """The step is not taken; another optimizer's with the same batches may be."""
        with suppress(PlanError):
            self.take(samples)
        self.begin()


def checked(samples: int) -> int:
    if isinstance(samples, bool) or not isinstance(samples, int) or samples < 0:
        raise PlanError(f"member.step(samples={samples!r}): give the number of samples of this worker's batch")
    return samples


def watching(models: tuple[torch.nn.Module, ...], counts: LoaderCounts) -> list[Any]:
    """Count what the models are given, for loops whose batches come from elsewhere."""
    return watch(models, counts.looked)
