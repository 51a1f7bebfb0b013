"""POP (HyperDrive, Rasley et al. 2017): promising trials have slots of their own, poor ones are ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from covey.policy.curves import outlook
from covey.policy.search import WORST, Decision, SearchLimits, TrialMove, TrialState, at_least, begin, proceed


@dataclass(frozen=True, kw_only=True, slots=True)
class Pop:
    """Predict each curve, and give slots by the chance that it comes to `target` (by default the best score so far).

    Trials are looked at every `step` epochs. Below the chance `poor` they end. Above a threshold they are promising and
    have slots of their own; the threshold follows from all chances. Others, and new trials, share the other slots.
    Where no trial is expected to come to a given target, the best goes on, so that one is trained to the end.
    """

    step: int = 1
    poor: float = 0.05
    target: float | None = None

    def __post_init__(self) -> None:
        at_least("pop", step=(self.step, 1), poor=(self.poor, 0))

    def next(self, trials: Sequence[TrialState], limits: SearchLimits) -> Decision:
        alive = [trial for trial in trials if not trial.over]
        chances = self.chances(trials, limits)
        ends = tuple(trial.number for trial in alive if trial.paused and chances.get(trial.number, 1.0) < self.poor)
        if self._hopeless(trials, chances, limits):
            best = max((trial for trial in alive if trial.reached), key=lambda trial: (trial.score, -trial.number))
            ends = tuple(number for number in ends if number != best.number)
        chances = {number: chance for number, chance in chances.items() if number not in ends}
        promising, dedicated = divided(chances, limits.slots)
        running = sum(trial.running for trial in alive if trial.number in promising)
        paused = [trial for trial in alive if trial.paused and trial.number not in ends and trial.reached]
        paused = [trial for trial in paused if trial.reached < limits.epochs]
        first = sorted((t for t in paused if t.number in promising), key=lambda t: (-chances[t.number], t.number))
        if first and running < dedicated:
            return Decision(move=proceed(first[0], self.step, limits), ends=ends)
        return Decision(move=self._opportunity(trials, paused, limits), ends=ends)

    def chances(self, trials: Sequence[TrialState], limits: SearchLimits) -> dict[int, float]:
        """For each trial that was scored and is not over, the chance that it comes to the target."""
        best = max((score for trial in trials for _, score in trial.curve if score == score), default=WORST)
        target = best if self.target is None else self.target
        scored = [trial for trial in trials if trial.reached and not trial.over]
        return {trial.number: outlook(trial.curve, limits.epochs).chance(target) for trial in scored}

    def _hopeless(self, trials: Sequence[TrialState], chances: Mapping[int, float], limits: SearchLimits) -> bool:
        """Whether a target was given that no trial is expected to come to, and none has been trained to the end."""
        trained = any(trial.reached >= limits.epochs and trial.score > WORST for trial in trials)
        return self.target is not None and bool(chances) and max(chances.values()) < self.poor and not trained

    def _opportunity(
        self, trials: Sequence[TrialState], paused: Sequence[TrialState], limits: SearchLimits
    ) -> TrialMove | None:
        """Who has come least far: a new trial, where there may be one."""
        if (new := begin(trials, limits, self.step)).move:
            return new.move
        least = min(paused, key=lambda trial: (trial.reached, trial.number), default=None)
        return proceed(least, self.step, limits) if least else None


def divided(chances: Mapping[int, float], slots: int) -> tuple[set[int], int]:
    """The promising trials, and how many slots are theirs.

    Rasley et al. 2017, section 3.2: with a threshold p as many trials desire a slot as have the chance p, and p · slots
    are deserved. The threshold is where most slots are both.
    """
    order = sorted(chances, key=lambda number: (-chances[number], number))
    both = [min(place + 1, chances[number] * slots) for place, number in enumerate(order)]
    if not both or max(both) <= 0:
        return set(), 0
    place = both.index(max(both))
    return set(order[: place + 1]), max(1, round(both[place]))
