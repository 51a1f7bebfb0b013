"""A task's torch scheduler: what may be one, and what it is stepped by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from inspect import Parameter, signature
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from covey.errors import PlanError
from covey.task.arguments import check_call

COUNTED = ("epoch", "batch")
"""What schedulers are stepped by, besides a metric."""

MakeScheduler = Callable[..., LRScheduler]


@dataclass(frozen=True, slots=True)
class ScaledRate:
    """A task's `rate`, multiplied by a factor that does not depend on progress."""

    factor: float
    usual: Callable[[float], float] | None = None

    def __call__(self, progress: float) -> float:
        return self.factor * (self.usual(progress) if self.usual else 1.0)


def depends_on_length(make: MakeScheduler | None, rate: Callable[[float], float] | None = None) -> bool:
    """Whether the rates of a run follow from how long it is: `scheduler(optimizer, steps)`, or `rate(progress)`."""
    inner = rate.usual if isinstance(rate, ScaledRate) else rate
    return inner is not None or (make is not None and "steps" in _parameters(make))


def with_length(make: MakeScheduler, steps: int) -> MakeScheduler:
    """The same scheduler, made for this number of its steps, however long a run is."""
    return (lambda optimizer: make(optimizer, steps=steps)) if depends_on_length(make) else make


def check_scheduler(make: Any, by: Any) -> None:
    """Refuse what cannot make a scheduler."""
    if not isinstance(by, str) or not by:
        raise PlanError(f"Task: schedule_by must be 'epoch', 'batch' or the name of a metric, not {by!r}")
    if make is None:
        if by != COUNTED[0]:
            raise PlanError(f"Task: schedule_by={by!r} is for a scheduler: give scheduler=lambda optimizer: …")
        return
    if isinstance(make, LRScheduler):
        made = f"lambda optimizer: {type(make).__name__}(optimizer, …)"
        raise PlanError(
            f"Task: scheduler must be a function of the optimizer, as each role has its own: scheduler={made}"
        )
    if not callable(make):
        raise PlanError(f"Task: scheduler must be a function of the optimizer, not {type(make).__name__}")
    if wanted := [name for name in _required(make)[1:] if name != "steps"]:
        raise PlanError(
            f"Task: scheduler is given the optimizer, and the number of its steps in the run where it has a parameter "
            f"`steps`; it also wants {', '.join(wanted)}: give them in a lambda"
        )
    check_call("Task", "scheduler", make, ["optimizer"], ["steps"] if "steps" in _parameters(make) else [])


def made(make: MakeScheduler, optimizer: Optimizer, by: str, steps: int | None) -> LRScheduler:
    """The scheduler of this optimizer; refused, by name, where covey could not step it."""
    if "steps" in _parameters(make) and steps is None:
        raise PlanError("Task: scheduler(optimizer, steps) needs the number of steps, and this run has no end")
    found = make(optimizer, steps=steps) if "steps" in _parameters(make) else make(optimizer)
    name = type(found).__name__
    if not isinstance(found, LRScheduler):
        raise PlanError(f"Task: scheduler(optimizer) must return a scheduler of torch.optim.lr_scheduler, not a {name}")
    for one in _all(found):
        if getattr(one, "optimizer", optimizer) is not optimizer:
            raise PlanError(
                f"Task: scheduler(optimizer) gave a {type(one).__name__} of another optimizer: make it of the one that "
                "is given, for each role has its own"
            )
        if one is not found and isinstance(one, ReduceLROnPlateau):
            raise PlanError(f"Task: {name} cannot give a ReduceLROnPlateau its metric: use that one alone")
    plateau = isinstance(found, ReduceLROnPlateau)
    if plateau and by in COUNTED:
        raise PlanError(
            f"Task: {name} follows a metric: name it, as schedule_by='accuracy' (with mode='max') or schedule_by='loss'"
        )
    if not plateau and by not in COUNTED:
        raise PlanError(f"Task: {name} follows no metric: schedule_by must be 'epoch' or 'batch', not {by!r}")
    return found


def cycles_momentum(scheduler: LRScheduler) -> bool:
    """Whether it sets the optimizer's momentum, too."""
    return any(getattr(one, "cycle_momentum", False) for one in _all(scheduler))


def _all(scheduler: LRScheduler) -> list[LRScheduler]:
    """It, and those that it puts together."""
    inside = getattr(scheduler, "_schedulers", ())
    return [scheduler, *(one for each in inside for one in _all(each))]


def _parameters(make: Any) -> dict[str, Parameter]:
    try:
        return dict(signature(make).parameters)
    except (TypeError, ValueError):  # of a function written in C
        return {}


def _required(make: Any) -> list[str]:
    kinds = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    found = _parameters(make).items()
    return [name for name, one in found if one.default is Parameter.empty and one.kind not in kinds]
