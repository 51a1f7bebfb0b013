"""Population based training (Jaderberg et al. 2017): the worst go on from the weights of the best, a little changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from covey.errors import PlanError
from covey.policy.search import WORST, Decision, SearchLimits, TrialMove, TrialState, at_least, begin, proceed


@dataclass(frozen=True, kw_only=True, slots=True)
class Pbt:
    """Train a `population`; after every `interval` epochs each of the worst `quantile` becomes a copy of a best one.

    The copy is a new trial, whose parent is named, and the other one ends. All are compared after the same epochs: who
    is ahead waits. So the decisions depend neither on the slots nor on which trials are fused.
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
        members = [trial for trial in trials if trial.running or trial.paused]
        behind = min((trial.reached for trial in members), default=limits.epochs)
        waiting = [trial for trial in members if trial.paused and trial.reached == behind < limits.epochs]
        if not waiting:
            return Decision()
        copied = self.copied(trials, behind, limits) if len(trials) < limits.trials else None
        if copied is None:
            return Decision(move=proceed(waiting[0], self.interval, limits))
        worst, parent = copied  # before the parent goes on
        until = proceed(parent, self.interval, limits).until
        return Decision(move=TrialMove(until=until, parent=parent.number), ends=(worst.number,))

    def copied(
        self, trials: Sequence[TrialState], epochs: int, limits: SearchLimits
    ) -> tuple[TrialState, TrialState] | None:
        """The next of the worst after these epochs, and the one whose weights it goes on from."""
        ended = sum(one.over and one.reached == epochs and one.score > WORST for one in trials)  # each has a copy
        members = sorted((one for one in trials if one.reached >= epochs and not one.over), key=lambda o: o.at(epochs))
        count = int(len(members) * self.quantile)
        waiting = [one for one in members if one.paused and one.reached == epochs]
        best = [one for one in members[len(members) - count - ended :] if one in waiting]
        for trial in members[: max(0, count - ended)]:
            better = [one for one in best if one.score > trial.score]
            if trial in waiting and better:
                return trial, Random(f"{limits.seed}/{trial.number}/{epochs}").choice(better)
        return None
