"""Which rates has the beginning of a longer run?"""

from __future__ import annotations

from dataclasses import replace

from covey.model import build
from covey.model.replica_spec import pace_of
from covey.task import Task
from covey.task.schedule import depends_on_length, with_length


def in_run_of(epochs: int, task: Task, passes: float) -> Task:
    """The task, with the rates that the first `passes` over its data have in a run of this many epochs."""
    if not depends_on_length(task.scheduler, task.rate):
        return task
    deal = build.shards(task, 1, 0)
    pace, rate, share = pace_of(task, deal, None), task.rate, min(1.0, passes / epochs)
    return replace(
        task, scheduler=with_length(pace.make, pace.steps(epochs * deal.samples)) if pace else None,
        rate=(lambda progress: rate(share * progress)) if rate else None,
    )  # fmt: skip
