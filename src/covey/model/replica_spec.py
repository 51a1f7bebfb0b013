"""What is a replica made of? A task's model, and a role's place in the run."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from covey.data.shards import Shards
from covey.message import Address
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
