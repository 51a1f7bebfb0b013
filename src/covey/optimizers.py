"""The task's optimizer: how one is made, and what may be done with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import nn
from torch.optim import Optimizer

from covey.errors import PlanError

ELEMENTWISE = {
    torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.NAdam, torch.optim.RAdam, torch.optim.Adamax,
    torch.optim.Adagrad, torch.optim.Adadelta, torch.optim.RMSprop, torch.optim.Rprop, torch.optim.ASGD,
}  # fmt: skip
"""Optimizers that treat every number alone, so that one parameter may be split between servers."""

MakeOptimizer = Callable[[Iterable[tuple[str, nn.Parameter]]], Optimizer]


def elementwise(optimizer: Optimizer) -> bool:
    """Whether it treats every number alone."""
    return bool(getattr(optimizer, "elementwise", type(optimizer) in ELEMENTWISE))


def check_momentum(optimizer: Optimizer) -> None:
    """Refuse an optimizer to which no momentum can be given."""
    if any("momentum" not in group for group in optimizer.param_groups):
        raise PlanError(f"{type(optimizer).__name__} has no momentum to set: use torch.optim.SGD")


def made(make: MakeOptimizer, pairs: list[tuple[str, nn.Parameter]]) -> Optimizer:
    """A task's optimizer over these parameters, or slices of them."""
    if not pairs:
        raise PlanError("a server would hold no parameter: use fewer servers")
    optimizer = make(iter(pairs))
    if not isinstance(optimizer, Optimizer):
        raise PlanError(f"task.optimizer must return a torch Optimizer; it returned a {type(optimizer).__name__}")
    return optimizer
