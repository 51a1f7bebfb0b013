"""Who is still in the race, and is it over? Pure: from the times of all runs so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from covey.compare.cases import Entrant
from covey.compare.paired import Finish, Ratio, ratio
from covey.errors import PlanError
from covey.names import option

ERROR = 0.05  # the chance that any statement of a comparison is wrong
EARLY, LAST = 0.1, 0.6  # of it, for each look before the last round, and for the last: by simulation all 11 keep it
EQUAL = 1.05  # times: strategies that are surely nearer to one another than this need no further runs


@dataclass(frozen=True, kw_only=True, slots=True)
class Rounds:
    """How many runs there are of each entrant: from `least` to `most`, until one has separated from all others."""

    least: int = 5
    most: int = 15

    @property
    def fixed(self) -> bool:
        return self.least == self.most


ONCE = Rounds(least=1, most=1)


def rounds(repeat: int | None, racing: bool) -> Rounds:
    """As many as a person asks for; else those of a race, where there is one."""
    if repeat is None:
        return Rounds() if racing else ONCE
    if repeat < 1:
        raise PlanError(f"{option('repeat', repeat)}: at least 1 is needed")
    return Rounds(least=repeat, most=repeat)


class Standings:
    """What the finishes say of each pair of entrants, with the intervals corrected for the number of statements."""

    def __init__(self, finishes: Mapping[Entrant, Mapping[int, Finish]], rounds: Rounds) -> None:
        self.finishes = {entrant: found for entrant, found in finishes.items() if found}
        self.rounds = rounds
        self._ratios: dict[tuple[Entrant, Entrant], Ratio] = {}

    def ratio(self, mine: Entrant, theirs: Entrant) -> Ratio:
        if mine == theirs:
            return Ratio(value=1.0, low=1.0, high=1.0, seeds=len(self.finishes[mine]))
        if (mine, theirs) not in self._ratios:
            one, other = self.finishes[mine], self.finishes[theirs]
            self._ratios[mine, theirs] = ratio(one, other, self.error(len(one.keys() & other.keys())))
        return self._ratios[mine, theirs]

    def error(self, seeds: int) -> float:
        """The chance of error that one interval of this many seeds may have."""
        share = 1.0 if self.rounds.fixed else LAST if seeds >= self.rounds.most else EARLY
        return share * ERROR / max(1, len(self.finishes) - 1)

    def behind(self, mine: Entrant) -> bool:
        """Whether another one is surely faster; never before both have run in the fewest rounds."""
        many = [self.ratio(mine, other) for other in self.finishes if other != mine]
        return any(found.behind and found.seeds >= min(self.rounds.least, Rounds().least) for found in many)

    def ahead(self) -> list[Entrant]:
        """Those that nobody has left behind, the fastest first."""
        return sorted((entrant for entrant in self.finishes if not self.behind(entrant)), key=self.middle)

    def middle(self, entrant: Entrant) -> tuple[float, float]:
        """The median, with those that missed the target behind all others."""
        times = [one.seconds if one.reached else float("inf") for one in self.finishes[entrant].values()]
        return median(times), median(one.seconds for one in self.finishes[entrant].values())

    def runners(self, entered: Sequence[Entrant], number: int) -> list[Entrant]:
        """Who runs in the round of this number, in order; nobody where further runs would tell nothing new."""
        left = [one for one in entered if self.rounds.fixed or one not in self.finishes or not self.behind(one)]
        if number >= self.rounds.least and (len({one.spec for one in left}) < 2 or self.equal(left)):
            return []
        first = number % max(1, len(entered))  # each round another one begins
        return [one for one in [*entered[first:], *entered[:first]] if one in left]

    def equal(self, among: Sequence[Entrant]) -> bool:
        """Whether these are so near to one another that it does not matter which is first."""
        known = all(one in self.finishes for one in among)
        pairs = [(one, other) for one in among for other in among if one != other]
        return known and all(self.ratio(*pair).within(EQUAL) for pair in pairs)
