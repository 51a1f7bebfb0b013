"""What does a loop train? Its models, its optimizers, and which of these steps now."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from covey.errors import PlanError


def models_and_optimizers(
    model: nn.Module | Sequence[nn.Module], optimizer: Optimizer | Sequence[Optimizer]
) -> tuple[tuple[nn.Module, ...], tuple[Optimizer, ...]]:
    """All that covey.join was given; refused where nothing could be trained, or something else exchanges gradients."""
    models = (model,) if isinstance(model, nn.Module) else tuple(model)
    optimizers = (optimizer,) if isinstance(optimizer, Optimizer) else tuple(optimizer)
    if not models or not optimizers:
        raise PlanError("covey.join: model and optimizer must be at least one each, and a list that was given is empty")
    if any(isinstance(each, DistributedDataParallel) for each in models):
        raise PlanError(
            "the model is wrapped in DistributedDataParallel, which exchanges gradients itself: give covey.join "
            "the plain model, and the strategy does that"
        )
    return models, optimizers


def chosen_optimizer(optimizers: Sequence[Optimizer], named: Optimizer | None) -> Optimizer:
    """The one that steps now: the only one, or the one that the loop names."""
    if named is None and len(optimizers) > 1:
        raise PlanError("the run has several optimizers: say which one steps now, member.step(optimizer=…)")
    if named is not None and not any(named is each for each in optimizers):
        raise PlanError("member.step(optimizer=…): this optimizer was not given to covey.join")
    return named or optimizers[0]


def all_parameters(optimizers: Sequence[Optimizer]) -> Iterator[nn.Parameter]:
    """All that one of them steps."""
    return (parameter for optimizer in optimizers for parameter in parameters_of(optimizer))


def parameters_of(optimizer: Optimizer) -> list[nn.Parameter]:
    """All that it steps."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def note_steps(optimizers: Sequence[Optimizer]) -> None:
    """Let no scheduler warn that no step came before it: servers may step, or the run goes on from earlier steps."""
    for each in optimizers:
        each._opt_called = True  # type: ignore[attr-defined]
