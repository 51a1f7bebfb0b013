"""What is a replica made of? A task's model, and a role's place in the run."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from covey.data.shards import Shards
from covey.message import Address
from covey.settings import SchedulePace
from covey.task import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSpec:
    """What a role that has only a part of the model makes its replica of; the whole model is then let go."""

    task: Task
    module: nn.Module  # the whole model, with the weights of the run's seed
    deal: Shards  # how the data is dealt out, among replicas where several workers are one
    who: Address
    trains: bool
    budget: int | None  # samples of the whole run

    @property
    def pace(self) -> SchedulePace | None:
        return pace_of(self.task, self.deal, self.budget)


def pace_of(task: Task, deal: Shards, budget: int | None) -> SchedulePace | None:
    """How the task's scheduler is stepped, if it has one."""
    if task.scheduler is None:
        return None
    return SchedulePace(
        make=task.scheduler, by=task.schedule_by, samples=deal.samples, batch=deal.batch_size, budget=budget
    )
