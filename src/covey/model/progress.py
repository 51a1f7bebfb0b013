"""How far is the run? Schedules of the learning rate follow the samples of all workers."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch.optim import Optimizer

from covey.faults import in_task
from covey.settings import SchedulePace, SteppedScheduler, check_rate


class TrainingProgress:
    """Samples of the whole run, as far as one role knows, and what the task's schedules make of them."""

    def __init__(
        self, rate: Callable[[float], float] | None, budget: int | None, pace: SchedulePace | None = None
    ) -> None:
        self._rate, self._budget, self._pace = rate, budget, pace
        self._scheduler: SteppedScheduler | None = None
        self.seen = 0  # before this step
        self.under_way = 0  # of this step
        self.updated: Callable[[], None] = lambda: None  # hears that the samples of an update are seen
        self.scores: tuple[float, ...] = ()  # that the scheduler has heard, where it follows a metric

    def lead(self, optimizer: Optimizer) -> None:
        """From now on this optimizer has the rate of the task's scheduler, if there is one."""
        if self._pace:
            self._scheduler = self._pace.start(optimizer)
            self._scheduler.reach(self.seen)
            for score in self.scores:
                self._scheduler.hear(score)

    def restore(self, seen: int, scores: Iterable[float] = ()) -> None:
        """So many samples were seen, and these scores heard, by whoever goes on here."""
        if type(seen) is not int or not 0 <= seen < 1 << 53:
            raise ValueError("the number of samples seen is none")
        self.seen, self.scores = seen, tuple(scores)

    def hear(self, score: float) -> None:
        """The model was scored, and the scheduler follows that metric."""
        if self._scheduler:
            self.scores += (score,)
            self._scheduler.hear(score)

    def leave_momentum(self, why: str) -> None:
        """Refuse a scheduler that sets the momentum, too."""
        if self._scheduler:
            self._scheduler.leave_momentum(why)

    def begin(self, samples: int) -> None:
        """All workers together have `samples` in this step, which the next update ends."""
        self.under_way = samples

    def end(self) -> None:
        """The samples of this step are seen."""
        self.add(self.under_way)
        self.under_way = 0

    def add(self, samples: int) -> None:
        """Further `samples` are seen, of which no step of this role's own knows."""
        self._see(self.seen + samples)
        if samples:
            self.updated()

    def reach(self, samples: int) -> None:
        """At least `samples` count as seen."""
        self._see(max(self.seen, samples))

    def _see(self, samples: int) -> None:
        self.seen = samples
        if self._scheduler:
            self._scheduler.reach(samples)

    @property
    def rate(self) -> float:
        """The factor of the learning rate, by the share of the budget that was seen before this step."""
        share = min(1.0, self.seen / self._budget) if self._budget else 0.0
        with in_task("rate(progress)"):
            rate = float(self._rate(share)) if self._rate else 1.0
        if self._scheduler:
            self._scheduler.check()
        check_rate(f"Task: rate({share:g}), the factor on the learning rate,", rate)
        return rate
