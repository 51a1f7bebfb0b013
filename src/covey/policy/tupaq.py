"""TuPAQ (Sparks et al. 2015): train in batches of models, and drop those that are far behind the best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from covey.policy.search import WORST, Decision, SearchLimits, TrialState, at_least, begin, proceed


@dataclass(frozen=True, kw_only=True, slots=True)
class Tupaq:
    """Train `batch` models at a time; every `partial` epochs drop those with score · (1 + `slack`) < best score."""

    batch: int = 10
    partial: int = 1
    slack: float = 0.5

    def __post_init__(self) -> None:
        at_least("tupaq", batch=(self.batch, 1), partial=(self.partial, 1), slack=(self.slack, 0))

    def next(self, trials: Sequence[TrialState], limits: SearchLimits) -> Decision:
        best = max((score for trial in trials for _, score in trial.curve if score == score), default=WORST)
        alive = [trial for trial in trials if not trial.over]
        behind = [trial for trial in alive if trial.paused and trial.reached and self.dropped(trial.score, best)]
        ends = tuple(trial.number for trial in behind)
        left = [trial for trial in alive if trial not in behind]
        if len(left) < self.batch and len(trials) < limits.trials:
            return Decision(move=begin(trials, limits, self.partial).move, ends=ends)
        waiting = [trial for trial in left if trial.paused and trial.reached < limits.epochs]
        if not waiting:
            return Decision(ends=ends)
        least = min(waiting, key=lambda trial: (trial.reached, trial.number))
        return Decision(move=proceed(least, self.partial, limits), ends=ends)

    def dropped(self, score: float, best: float) -> bool:
        """Sparks et al. 2015, section 3.2, written so that it also holds where scores are below 0 (losses)."""
        return score < best - abs(best) * self.slack / (1 + self.slack)
