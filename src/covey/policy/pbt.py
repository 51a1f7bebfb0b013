"""Population based training (Jaderberg et al. 2017): the worst go on from the weights of the best, a little changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from covey.errors import PlanError
from covey.policy.search import Decision, SearchLimits, TrialMove, TrialState, at_least, begin, proceed


@dataclass(frozen=True, kw_only=True, slots=True)
class Pbt:
    """Train a `population`; after every `interval` epochs a trial of the worst `quantile` becomes a copy of a best one.

    The copy is a new trial, whose parent is named, and the other one ends.
    """

    population: int = 8
    interval: int = 1
    quantile: float = 0.25

    def __post_init__(self) -> None:
        at_least("pbt", population=(self.population, 2), interval=(self.interval, 1), quantile=(self.quantile, 0))
        if int(self.population * self.quantile) < 1:
            raise PlanError(
                f"pbt(population={self.population}, quantile={self.quantile:g}): at least one trial must be among the "
                "worst: take more of either"
            )

    def next(self, trials: Sequence[TrialState], limits: SearchLimits) -> Decision:
        if len(trials) < min(self.population, limits.trials):
            return begin(trials, limits, self.interval)
        waiting = [trial for trial in trials if trial.paused and trial.reached < limits.epochs]
        if not waiting:
            return Decision()
        least = min(waiting, key=lambda trial: (trial.reached, trial.number))
        parent = self.parent(least, trials, limits) if len(trials) < limits.trials else None
        if parent is None:
            return Decision(move=proceed(least, self.interval, limits))
        until = proceed(parent, self.interval, limits).until
        return Decision(move=TrialMove(until=until, parent=parent.number), ends=(least.number,))

    def parent(self, trial: TrialState, trials: Sequence[TrialState], limits: SearchLimits) -> TrialState | None:
        """Whose weights a trial goes on from; None where it is not among the worst, or no best one can be copied."""
        members = sorted((one for one in trials if one.reached and not one.over), key=lambda one: one.score)
        count = int(len(members) * self.quantile)
        if count == 0 or trial not in members[:count]:
            return None
        best = [one for one in members[-count:] if one.paused and trial.reached <= one.reached < limits.epochs]
        best = [one for one in best if one.score > trial.score]
        return Random(f"{limits.seed}/{trial.number}/{trial.reached}").choice(best) if best else None
