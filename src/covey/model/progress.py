"""How far is the run? Schedules of the learning rate follow the samples of all workers."""

from __future__ import annotations

from collections.abc import Callable

from covey.faults import in_task


class TrainingProgress:
    """Samples of the whole run, as far as one role knows, and what the task's schedule makes of them."""

    def __init__(self, rate: Callable[[float], float] | None, budget: int | None) -> None:
        self._rate, self._budget = rate, budget
        self.seen = 0  # before this step
        self.under_way = 0  # of this step

    def begin(self, samples: int) -> None:
        """All workers together have `samples` in this step, which the next update ends."""
        self.under_way = samples

    def end(self) -> None:
        """The samples of this step are seen."""
        self.add(self.under_way)
        self.under_way = 0

    def add(self, samples: int) -> None:
        """Further `samples` are seen, of which no step of this role's own knows."""
        self.seen += samples

    def reach(self, samples: int) -> None:
        """At least `samples` count as seen."""
        self.seen = max(self.seen, samples)

    @property
    def rate(self) -> float:
        """The factor of the learning rate, by the share of the budget that was seen before this step."""
        share = min(1.0, self.seen / self._budget) if self._budget else 0.0
        with in_task("rate(progress)"):
            return float(self._rate(share)) if self._rate else 1.0
