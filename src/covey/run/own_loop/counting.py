"""How many samples a step of the user's own loop has, on this worker and on all of them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from covey.errors import PlanError
from covey.run.own_loop.loading import Sizes, watch
from covey.task.arguments import describe


@dataclass(frozen=True, slots=True)
class StepSamples:
    """The samples of one step; `divided`: workers are known to have different ones."""

    mine: int
    everybody: int | None  # None: the others must be asked
    divided: bool
    told: bool  # by the loop
    alike: bool  # every batch of it counts the same on all workers
    each: tuple[int, ...] = ()  # of every worker; as many as this one has, where that is not known


class LoaderCounts:
    """What was pulled from loaders since the last step, and what the models were given."""

    def __init__(self, workers: int, trained: Callable[[], Iterable[Parameter]] = tuple) -> None:
        self.workers, self._trained = workers, trained
        self._last: StepSamples | None = None  # of the last step, where its batches came from loaders
        self.begin()

    def begin(self) -> None:
        """Another step begins."""
        self._batches: list[Sizes] = []
        self._gradient: tuple[Parameter, Tensor, int] | None = None  # one that batches left, and the number of these
        self._given = self._looked = 0
        self._told = False  # the samples of a batch are known

    def pulled(self, sizes: Sizes) -> None:
        """A batch comes from a loader; one that is only looked at, without gradients, is of no step."""
        if not torch.is_grad_enabled():
            return
        self._forget_zeroed()
        if self._batches and self._looked:
            self._keep_gradient()
        self._batches.append(sizes)

    def _keep_gradient(self) -> None:
        """Note a gradient of the batches so far, to see later whether the loop has zeroed it: it skips bad batches."""
        left = [(p, p.grad) for p in self._trained() if p.grad is not None and not p.grad.is_sparse]
        if not any(grad.is_cuda or grad.any() for _, grad in left):  # a GPU is not waited for
            self._batches.clear()
            self._looked = 0
        else:
            self._gradient = *min(left, key=lambda pair: pair[1].numel()), len(self._batches)

    def _forget_zeroed(self) -> None:
        """Batches whose gradients the loop has set to None since do not count."""
        if self._gradient and self._gradient[0].grad is not self._gradient[1]:
            del self._batches[: self._gradient[2]]
            self._gradient = None

    @property
    def _mine(self) -> int | None:
        return _sum(batch.mine for batch in self._batches)

    @property
    def _everybody(self) -> int | None:
        return None if self._mine is None else _sum(batch.everybody for batch in self._batches)

    @property
    def _alike(self) -> bool:
        counted = self._everybody is not None
        return counted and all(one.everybody == (one.mine or 0) * self.workers for one in self._batches)

    def looked(self, samples: int) -> None:
        """A model is given samples; several may be given the same ones."""
        self._looked = max(self._looked, samples)

    def add(self, samples: int | None) -> None:
        """One of several batches of a step is through, of as many samples as the loop says or models were given."""
        self._told = self._told or samples is not None
        self._given, self._looked = self._given + (self._looked if samples is None else samples), 0

    @property
    def weight(self) -> float:
        """What this worker's samples count, as far as they are known yet; 1 is as much as the others'."""
        return self._mine * self.workers / self._everybody if self._mine and self._everybody else 1.0

    def take(self, samples: int | None) -> StepSamples:
        """The step's samples, where they can be found; the loop may give them."""
        if samples is None and self._last and not (self._batches or self._looked or self._given or self._told):
            return self._last  # another optimizer steps on the same batches
        self._forget_zeroed()
        self.add(samples)
        mine = self._given if self._told or not self._batches or self._mine is None else self._mine
        if not self._told and not mine:
            raise PlanError(
                "member.step cannot see how many samples this step has: take batches from member.loader(loader) or "
                "member.shard(data, batch_size), or say it, member.step(loss, samples=n)"
            )
        everybody = self._everybody if self._batches and mine == self._mine else None
        alike = everybody is None or self._alike or len(self._batches) == 1
        each = (mine,) * self.workers
        if everybody is not None:
            each = tuple(map(sum, zip(*(batch.each for batch in self._batches), strict=True)))
        counted = StepSamples(mine, everybody, bool(self._batches) or self._told, self._told, alike, each)
        self._last = counted if self._batches else None
        self.begin()
        return counted

    def skip(self, samples: int | None) -> None:
        """The step is not taken; another optimizer's with the same batches may be."""
        with suppress(PlanError):
            self.take(samples)
        self.begin()


def _sum(counts: Iterable[int | None]) -> int | None:
    """None where one of them is unknown."""
    found = list(counts)
    return None if None in found else sum(filter(None, found))


def check_counted(loss: object, samples: int | None) -> None:
    """Refuse a step that is not of one loss, or of fewer samples than none."""
    if isinstance(loss, Tensor) and loss.numel() != 1:
        raise PlanError(f"member.step: loss must be one number, not {describe(loss)}")
    if samples is not None and samples < 0:
        raise PlanError(f"member.step: samples must be the number of samples of this worker's batch, not {samples}")


def watching(models: tuple[torch.nn.Module, ...], counts: LoaderCounts) -> list[Any]:
    """Count what the models are given, for loops whose batches come from elsewhere."""
    return watch(models, counts.looked)


def lacks_gradient(optimizer: Optimizer) -> bool:
    """Whether something needs a gradient, and nothing has one."""
    found = False
    for group in optimizer.param_groups:
        for parameter in group["params"]:  # the first one usually has a gradient, and that is enough
            if parameter.requires_grad:
                if parameter.grad is not None:
                    return False
                found = True
    return found


def warn_without_gradient(optimizer: Optimizer) -> None:
    """Warn where a step would change nothing."""
    if all(parameter.grad is None for group in optimizer.param_groups for parameter in group["params"]):
        warnings.warn(
            "member.step: no parameter of the optimizer has a gradient, so this step trains nothing; call "
            "loss.backward() before it, with a loss that is not detached from the model",
            stacklevel=4,  # the line of the loop, behind the check of its arguments
        )
