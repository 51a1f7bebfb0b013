"""Searches that promote: all trials begin with few epochs, and the best of them are continued."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from covey.policy.search import Decision, SearchLimits, TrialMove, TrialState, at_least, begin, ranked


@dataclass(frozen=True, kw_only=True, slots=True)
class RandomSearch:
    """Train every trial to its end; the neighbour of all others."""

    def next(self, trials: Sequence[TrialState], limits: SearchLimits) -> Decision:
        return begin(trials, limits, limits.epochs)


@dataclass(frozen=True, kw_only=True, slots=True)
class Asha:
    """Asynchronous successive halving (Li et al. 2018): promote from the highest rung that allows it, else begin.

    A rung is `grace` · `factor`^k epochs. A trial is promoted when it is among the best 1/`factor` of those scored at
    its rung so far. No slot ever waits for a rung to fill; a promotion may turn out wrong later.
    """

    grace: int = 1
    factor: int = 4

    def __post_init__(self) -> None:
        at_least("asha", grace=(self.grace, 1), factor=(self.factor, 2))

    def rungs(self, most: int) -> list[int]:
        """The epochs at which trials are compared; the last is the end of a trial."""
        found, epochs = [], self.grace
        while epochs < most:
            found.append(epochs)
            epochs *= self.factor
        return [*found, most]

    def next(self, trials: Sequence[TrialState], limits: SearchLimits) -> Decision:
        rungs = self.rungs(limits.epochs)
        for rung, above in reversed(list(pairwise(rungs))):
            scored = [trial for trial in trials if trial.reached >= rung]
            for trial in ranked(scored, rung)[: len(scored) // self.factor]:
                if trial.paused and trial.reached < above:
                    return Decision(move=TrialMove(until=above, trial=trial.number))
        return begin(trials, limits, rungs[0])


@dataclass(frozen=True, slots=True)
class Bracket:
    """Trials that begin together, with as many epochs, and are halved together."""

    members: int
    rungs: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Hyperband:
    """Brackets of successive halving (Li et al. 2017), from many short trials to few long ones; each rung fills first.

    The best 1/`factor` of a rung are promoted when all that came to it have been scored there.
    """

    factor: int = 3

    def __post_init__(self) -> None:
        at_least("hyperband", factor=(self.factor, 2))

    def brackets(self, most: int) -> list[Bracket]:
        """One round of brackets, for trials of at most this many epochs."""
        halvings = 0
        while self.factor ** (halvings + 1) <= most:
            halvings += 1
        found = []
        for left in range(halvings, -1, -1):
            members = -(-(halvings + 1) * self.factor**left // (left + 1))
            rungs = [max(1, most // self.factor ** (left - level)) for level in range(left + 1)]
            found.append(Bracket(members, tuple(sorted({*rungs}))))
        return found

    def next(self, trials: Sequence[TrialState], limits: SearchLimits) -> Decision:
        first, dealt = 0, self._dealt(limits)
        for bracket in dealt:
            move = self._promoted(bracket, trials[first : first + bracket.members])
            if move:
                return Decision(move=move)
            first += bracket.members
        starts = list(accumulate(bracket.members for bracket in dealt))
        mine = next((bracket for bracket, end in zip(dealt, starts, strict=True) if len(trials) < end), None)
        return begin(trials, limits, mine.rungs[0]) if mine else Decision()

    def _dealt(self, limits: SearchLimits) -> list[Bracket]:
        """Rounds of brackets until all trials have one; the last may have fewer members."""
        found: list[Bracket] = []
        left, round = limits.trials, self.brackets(limits.epochs)
        while left > 0:
            one = round[len(found) % len(round)]
            found.append(Bracket(min(left, one.members), one.rungs))
            left -= one.members
        return found

    def _promoted(self, bracket: Bracket, trials: Sequence[TrialState]) -> TrialMove | None:
        """Who of a bracket is continued now: nobody while its rung is not full."""
        members = list(trials)
        if len(members) < bracket.members:
            return None
        for rung, above in pairwise(bracket.rungs):
            if any(trial.reached < rung and not trial.over for trial in members):
                return None
            members = ranked(members, rung)[: max(1, len(members) // self.factor)]
            for trial in members:
                if trial.paused and trial.reached < above:
                    return TrialMove(until=above, trial=trial.number)
        return None
