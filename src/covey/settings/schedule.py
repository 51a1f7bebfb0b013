"""A torch scheduler of a task: stepped by what the whole run has seen, so that any number of workers has its rates."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass

from torch.optim import Optimizer

from covey.errors import PlanError
from covey.faults import in_task
from covey.settings.values import check_rates
from covey.task import schedule
from covey.task.schedule import COUNTED, MakeScheduler


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulePace:
    """How a task's scheduler is made, and how often it has been stepped when the run has seen this many samples.

    By epochs: once for each pass over the data. By batches: as often as one worker alone would have taken a step.
    """

    make: MakeScheduler
    by: str  # "epoch", "batch" or a metric
    samples: int  # of a pass
    batch: int  # samples of one step of one worker
    budget: int | None = None  # samples of the run

    def steps(self, seen: int) -> int:
        """The scheduler's steps before the update that follows these samples."""
        if self.by not in COUNTED:
            return 0
        passes, inside = divmod(seen if self.budget is None else min(seen, self.budget), self.samples)
        return passes if self.by == "epoch" else passes * -(-self.samples // self.batch) + inside // self.batch

    def start(self, optimizer: Optimizer) -> SteppedScheduler:
        """The scheduler of one role's optimizer."""
        return SteppedScheduler(self, optimizer)


class SteppedScheduler:
    """One role's scheduler. Whatever a role has missed it is stepped through: there is nothing of it to be kept."""

    def __init__(self, pace: SchedulePace, optimizer: Optimizer) -> None:
        self._pace, self._taken = pace, 0
        self._unchecked = False
        for group in optimizer.param_groups:  # of an optimizer that was kept, or has had a scheduler
            group["lr"] = deepcopy(group.get("initial_lr", group["lr"]))
        first = [deepcopy(group["lr"]) for group in optimizer.param_groups]
        total = None if pace.budget is None else pace.steps(pace.budget)
        with in_task("scheduler(optimizer)"):
            self.scheduler = schedule.made(pace.make, optimizer, pace.by, total)
        for group, rate in zip(optimizer.param_groups, first, strict=True):
            group.setdefault("initial_lr", rate)  # ReduceLROnPlateau sets none, and who goes on begins with it
        optimizer._opt_called = True  # type: ignore[attr-defined]  # a role may be here before its first step

    def reach(self, seen: int) -> None:
        """The run has seen this many samples."""
        while self._taken < self._pace.steps(seen):
            self._taken += 1
            with in_task("scheduler.step()"):
                self.scheduler.step()
            self._unchecked = True

    def check(self) -> None:
        """(Before an update) Refuse a rate that it cannot have; what follows the last update may be anything."""
        if self._unchecked:
            check_rates(self.scheduler.optimizer)
            self._unchecked = False

    def hear(self, score: float) -> None:
        """The model was scored."""
        with in_task("scheduler.step(metric)"):
            self.scheduler.step(score)  # type: ignore[arg-type]  # of ReduceLROnPlateau: a metric, not an epoch

    def leave_momentum(self, why: str) -> None:
        """Refuse a scheduler that sets the momentum, too."""
        if schedule.cycles_momentum(self.scheduler):
            raise PlanError(f"Task: {type(self.scheduler).__name__} sets the momentum, and {why}: cycle_momentum=False")
