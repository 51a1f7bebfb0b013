"""What does a policy of a search know, and what may it decide?

Scores are those of one metric, turned so that more is better. A trial that failed or diverged has the score -inf.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from covey.errors import PlanError

WORST = -math.inf


@dataclass(frozen=True, slots=True)
class TrialState:
    """A trial as a policy sees it: how good it was after how many epochs."""

    number: int
    curve: tuple[tuple[int, float], ...] = ()  # (epochs, score)
    running: bool = False
    over: bool = False  # it failed, has trained to the end, or was ended: it is never continued

    @property
    def reached(self) -> int:
        """The epochs after which it was last scored."""
        return self.curve[-1][0] if self.curve else 0

    @property
    def score(self) -> float:
        """The last one."""
        return self.at(self.reached)

    def at(self, epochs: int) -> float:
        """The last score after at most this many epochs; what is not a number counts as the worst."""
        found = [score for when, score in self.curve if when <= epochs]
        return found[-1] if found and not math.isnan(found[-1]) else WORST

    @property
    def paused(self) -> bool:
        """Whether it could be continued now."""
        return not (self.running or self.over) and self.score > WORST


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchLimits:
    """How much a search may use."""

    epochs: int  # of one trial
    trials: int
    slots: int = 1  # trials at a time
    seed: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialMove:
    """Train a trial until it has done this many epochs: a new one, a paused one, or a copy of a paused one."""

    until: int
    trial: int | None = None  # None: a new one
    parent: int | None = None  # of a new one that begins with the weights of another, and with changed settings


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """What to do with a free slot: nothing until a running trial has been scored, or nothing ever, without a move."""

    move: TrialMove | None = None
    ends: tuple[int, ...] = ()  # trials that are never continued


class SearchPolicy(Protocol):
    """Settings of a policy, and the function that they stand for. It remembers nothing: the trials say it all."""

    def next(self, trials: Sequence[TrialState], limits: SearchLimits) -> Decision: ...


def begin(trials: Sequence[TrialState], limits: SearchLimits, until: int) -> Decision:
    """Begin a new trial, if there may be more."""
    more = len(trials) < limits.trials
    return Decision(move=TrialMove(until=min(until, limits.epochs))) if more else Decision()


def proceed(trial: TrialState, epochs: int, limits: SearchLimits) -> TrialMove:
    """Train a trial for some more epochs."""
    return TrialMove(until=min(trial.reached + epochs, limits.epochs), trial=trial.number)


def ranked(trials: Sequence[TrialState], epochs: int) -> list[TrialState]:
    """The best after this many epochs first; of equal ones the earlier."""
    return sorted(trials, key=lambda trial: (-trial.at(epochs), trial.number))


def at_least(place: str, **numbers: tuple[float, float]) -> None:
    """Refuse settings below the least that they may be, each given as (value, least)."""
    for name, (value, least) in numbers.items():
        if value < least:
            raise PlanError(f"{place}({name}={value}): at least {least:g} is needed")
