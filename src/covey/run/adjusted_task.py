"""A task as a run wants it: with another learning rate, or another number of preparers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from numbers import Integral

from covey.errors import PlanError
from covey.names import option
from covey.run.option_parts import OptionPart
from covey.task import Task
from covey.task.schedule import ScaledRate

MOST = 10_000  # preparers


@dataclass(frozen=True, kw_only=True, slots=True)
class DataOptions(OptionPart):
    """Who makes batches of the data."""

    preparers: int | None = None  # in place of the task's own number

    def __post_init__(self) -> None:
        given = self.preparers
        if given is not None and (isinstance(given, bool) or not isinstance(given, Integral) or not 0 <= given < MOST):
            raise PlanError(f"{option('preparers', given)}: a whole number is needed, from 0 to {MOST - 1}")


def at_rate(task: Task, factor: float) -> Task:
    """The task with its learning rate multiplied by this factor."""
    if factor == 1:
        return task
    return replace(task, rate=ScaledRate(factor, task.rate))


def with_number(task: Task, preparers: int | None) -> Task:
    """The task with this many preparers, if a number was given."""
    if preparers and task.transform is None:
        raise PlanError(
            f"{option('preparers', preparers)}: preparers transform samples, and the task has no transform=…: add one, "
            f"or omit {option('preparers')}"
        )
    return task if preparers is None else replace(task, preparers=preparers)
