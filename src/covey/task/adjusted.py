"""A task as a run wants it: with another learning rate, or another number of preparers."""

from __future__ import annotations

from dataclasses import replace

from covey.errors import PlanError
from covey.names import option
from covey.task.definition import Task
from covey.task.schedule import ScaledRate


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
