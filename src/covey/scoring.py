"""How good is a model? `covey.accuracy`, and which targets its scores can meet."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from covey.errors import PlanError
from covey.target import OPS, Target, direction, parse_target
from covey.task import Task
from covey.task.data import Data, check_data


def accuracy(dataset: Data, batch_size: int = 1000) -> Callable[[nn.Module], dict[str, float]]:
    """Return a function for `Task(evaluate=…)` that measures the share of samples (x, y) whose largest output is y.

    Args:
        dataset: The samples to score, pairs (x, y) with y a class.
        batch_size: The number of samples per forward pass.

    >>> score = covey.accuracy((torch.eye(3), torch.tensor([0, 1, 2])))
    >>> score(torch.nn.Identity())
    {'accuracy': 1.0}
    """
    return _Accuracy(dataset, batch_size, check_data(dataset, "accuracy"))


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Meanwhile the model is in eval mode: no dropout, and batch norm by its running statistics."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        # One by one, because the user may keep some layers in eval mode while training.
        for module, training in modes:
            module.training = training


def target_of(task: Task, until: str) -> Target:
    """The target as it is meant for this task; one that no score can meet, or that bad scores meet, is refused."""
    target = parse_target(until, task.better)
    ranges: Mapping[str, tuple[float, float]] = getattr(task.evaluate, "ranges", {})
    low, high = ranges.get(target.metric, (target.value, target.value))
    if not low <= target.value <= high:
        raise PlanError(
            f"the target {until}: {target.metric} lies between {low:g} and {high:g}, so write for example "
            f"{target.metric}>={low + 0.9 * (high - low):g}"
        )
    way = direction(target.metric, task.better)
    if way and OPS[way] != target.op:
        raise PlanError(
            f"the target {until}: {way} values of {target.metric} are better, so a model that has learned nothing may "
            f"meet it: write '{target.metric}{OPS[way]}{target.value:g}', or declare another direction in the task: "
            f"Task(…, better={{{target.metric!r}: {'lower' if way == 'higher' else 'higher'!r}}})"
        )
    return target


@dataclass(frozen=True, slots=True)
class _Accuracy:
    """The function that `accuracy` returns."""

    ranges: ClassVar[Mapping[str, tuple[float, float]]] = {"accuracy": (0.0, 1.0)}  # of its metrics

    dataset: Data
    batch_size: int
    samples: int

    def __call__(self, model: nn.Module) -> dict[str, float]:
        device = next((p.device for p in model.parameters()), torch.device("cpu"))
        with eval_mode(model), torch.no_grad():
            right, seen = 0, 0
            for x, y in _batches(self.dataset, self.batch_size):
                right += int((model(x.to(device)).argmax(dim=1) == y.to(device)).sum())
                seen += len(y)
        if seen != self.samples:
            raise PlanError(
                f"accuracy: len(data) was {self.samples} and is {seen} now; a data set must keep its length"
            )
        return {"accuracy": right / self.samples}


def _batches(data: Data, size: int) -> Iterator[Any]:
    columns = data.tensors if type(data) is TensorDataset else data
    if isinstance(columns, tuple):
        return zip(*(column.split(size) for column in columns), strict=True)
    # The loader draws a seed when it starts; its own generator leaves the training's random numbers alone.
    return iter(DataLoader(columns, batch_size=size, generator=torch.Generator()))
