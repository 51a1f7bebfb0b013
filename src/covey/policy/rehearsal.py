"""What would a policy have done? Recorded curves, replayed in virtual time under the code that runs for real."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from covey.policy.curves import outlook
from covey.policy.search import WORST, SearchLimits, SearchPolicy, TrialState


@dataclass(frozen=True, slots=True)
class Recorded:
    """A trial that was trained: its scores, and the seconds of an epoch."""

    curve: tuple[tuple[int, float], ...]  # (epochs, score): more is better
    seconds: float = 1.0

    def scores(self, first: int, last: int) -> list[tuple[int, float]]:
        """The scores of these epochs; where the record ends, the curve goes on as it is expected to."""
        known = dict(self.curve)
        end = self.curve[-1][0] if self.curve else 0
        return [
            (epochs, known.get(epochs, self._latest(epochs) if epochs <= end else outlook(self.curve, epochs).mean))
            for epochs in range(first, last + 1)
        ]

    @property
    def lost(self) -> int | None:
        """The epochs after which it failed, if it did."""
        return self.curve[-1][0] if self.curve and self.curve[-1][1] == WORST else None

    def _latest(self, epochs: int) -> float:
        """Where an epoch was not scored, the one before counts."""
        found = [score for when, score in self.curve if when <= epochs]
        return found[-1] if found else WORST


class Rehearsed(NamedTuple):
    """What a policy found, and what it took."""

    best: float  # the best of the last scores of all trials, which is that of a model that there is
    epochs: int  # of all trials together
    seconds: float  # with all slots in use
    trials: int
    found: float  # seconds after which the best had been seen


def rehearse(policy: SearchPolicy, recorded: Sequence[Recorded], limits: SearchLimits) -> Rehearsed:
    """Replay a search: trials begin in the order of the record. A copy of a trial has its parent's curve."""
    limits = replace(limits, trials=min(limits.trials, len(recorded)))
    states: list[TrialState] = []
    parents: list[Recorded] = []
    due: list[tuple[float, int, int]] = []  # (when, trial, until)
    now, epochs, ended = 0.0, 0, dict[int, float]()  # when each was last scored
    while True:
        while len(due) < limits.slots:
            decision = policy.next(states, limits)
            for number in decision.ends:
                states[number] = replace(states[number], over=True)
            if (move := decision.move) is None:
                break
            if move.trial is None:
                parent = move.parent
                parents.append(recorded[len(states)] if parent is None else parents[parent])
                begun = states[parent].curve if parent is not None else ()
                states.append(TrialState(len(states), begun))
            number = len(states) - 1 if move.trial is None else move.trial
            trial = states[number]
            assert move.until > trial.reached and not trial.running and not trial.over, "a policy asked for nothing"
            states[number] = replace(trial, running=True)
            until = min(move.until, parents[number].lost or move.until)
            epochs += until - trial.reached
            heapq.heappush(due, (now + parents[number].seconds * (until - trial.reached), number, until))
        if not due:
            best = max(states, key=lambda trial: (trial.score, -trial.reached, -trial.number), default=None)
            score, found = (best.score, ended.get(best.number, 0.0)) if best else (WORST, 0.0)
            return Rehearsed(score, epochs, now, len(states), found)
        now, number, until = heapq.heappop(due)
        trial = states[number]
        curve = (*trial.curve, *parents[number].scores(trial.reached + 1, until))
        lost = curve[-1][1] == WORST
        states[number] = replace(trial, curve=curve, running=False, over=lost or until >= limits.epochs)
        ended[number] = now
