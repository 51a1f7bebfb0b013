"""What is known of every candidate so far, and what follows from it: times with their intervals."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median

from covey.advise import families
from covey.advise.candidates import Candidate
from covey.advise.estimate import Estimate, estimated, spread
from covey.advise.predict import StepTime
from covey.advise.ranked import Timing
from covey.advise.situation import Situation
from covey.advise.trials.level import Level
from covey.advise.trials.trial import TrialOutcome
from covey.advise.world import fastest, slowness

STEP_ERROR: dict[Timing, float] = {"formulas": 0.2, "virtual time": 0.1, "real steps": 0.05}
"""Standard deviations of the logarithm of a step's time, of one measurement; docs/benchmarks.md has the ratios."""
DISTURBED = 0.2  # the same of real steps while other programs used the cores
THUMB, LIKE, SEED = 0.3, 0.2, 0.1
"""The same of samples: by rules of thumb, by what others took, and of one seed to the target."""
EARLY, EARLY_BATCHES = 0.25, 64
"""The same by a loss that one worker alone reaches after so many batches; twice as large after half as many.

Of 19 strategies, trained to 86 % on Fashion-MNIST: 0.35 for 20 to 40 batches, 0.2 to 0.25 for 50 to 90.
"""
NARROWER = 0.1  # the share of an interval that another measurement must be able to take away to be worth its time
UNPROVEN = 1.15  # what only rules of thumb, or formulas, speak for must be better by this to come first
MOST_OF_A_STRATEGY = 2  # settings among the first


@dataclass(slots=True, kw_only=True)
class CandidateRow:
    """A candidate, with the time of its steps; real ones as they were measured, run by run."""

    candidate: Candidate
    step: StepTime
    factor: float  # of samples, against one worker alone, by rules of thumb
    timing: Timing = "formulas"
    real: list[float] = field(default_factory=list)
    failure: str = ""  # why no real step could be measured


@dataclass(slots=True)
class Curve:
    """Samples to the level by turn, of one mathematics; each turn has a seed of its own."""

    trials: dict[int, TrialOutcome] = field(default_factory=dict)

    @property
    def samples(self) -> list[float]:
        return [trial.samples for trial in self.trials.values() if math.isfinite(trial.samples)]

    @property
    def missed(self) -> bool:
        """Whether most runs were late."""
        return 2 * sum(trial.late for trial in self.trials.values()) > len(self.trials)

    @property
    def tried(self) -> float:
        return max((trial.tried for trial in self.trials.values()), default=0.0)

    def middle(self) -> Estimate | None:
        return estimated(self.samples, SEED) if self.samples and not self.missed else None


@dataclass(slots=True, kw_only=True)
class Known:
    """What is known of all candidates on one cluster; `ordered` sorts them."""

    now: Situation
    rows: list[CandidateRow]
    level: Level | None = None
    alone: list[float] = field(default_factory=list)  # samples of one worker alone to the level, by turn
    alone_real: list[float] = field(default_factory=list)  # seconds of its real steps
    curves: dict[str, Curve] = field(default_factory=dict)
    interrupted: bool = False
    late: bool = False  # the time of the search was over before all was tried
    disturbed: bool = False  # other programs used the cores while real steps were measured
    _ratios_of: tuple[object, dict[str, Estimate]] | None = None  # what was found of the runs that there were then

    def curve(self, row: CandidateRow) -> Curve:
        return self.curves.get(row.candidate.mathematics) or Curve()

    def missed(self, row: CandidateRow) -> bool:
        """Whether it failed, or most of its runs were ended as too slow."""
        return bool(row.failure) or self.curve(row).missed

    # -- steps ------------------------------------------------------------------------------------------------

    def single(self) -> Estimate:
        """A step of one worker alone."""
        if self.alone_real:
            return estimated(self.alone_real, self._real_error)
        own = self.now.alone * slowness(fastest(self.now.cluster, self.now.workers)[0], 1)[0]
        return Estimate(max(own, self.now.prepared_every / self.now.workers))

    def step(self, row: CandidateRow) -> Estimate:
        """Its real steps together with what was foreseen, times what real ones were of that; either where it is alone.

        A few real steps differ by chance, and so much that they alone would decide between strategies that are alike.
        """
        timing: Timing = "virtual time" if row.timing == "real steps" else row.timing  # how it was foreseen
        error = (timing == "virtual time" and self.now.cluster.error) or STEP_ERROR[timing]
        ratios = [median(other.real) / other.step.seconds for other in self.rows if other.real]
        if not ratios:
            return Estimate(row.step.seconds, error)
        foreseen = Estimate(row.step.seconds * median(ratios), spread(ratios, max(error, self._real_error)))
        if not row.real:
            return foreseen
        measured = estimated(row.real, self._real_error)
        return measured.joined(foreseen) if len(ratios) > 1 else measured  # alone, its own ratio would count twice

    @property
    def _real_error(self) -> float:
        return DISTURBED if self.disturbed else STEP_ERROR["real steps"]

    # -- samples ------------------------------------------------------------------------------------------------

    def samples(self, row: CandidateRow) -> Estimate:
        """Samples of all workers to the level, in those of one worker alone."""
        if own := self._trained().get(row.candidate.spec):
            return own.scaled(row.factor)
        alike = self._ratios(row.candidate.strategy.name)
        ratios = alike or self._ratios("")
        error = LIKE if alike or (ratios and self._exact) else THUMB
        return Estimate(row.factor * median(ratios or [1.0]), error)

    def samples_alone(self) -> Estimate:
        reached = [count for count in self.alone if math.isfinite(count)]
        return estimated(reached, SEED) if reached else Estimate(1.0)

    def _ratios(self, name: str) -> list[float]:
        """What runs of strategies (of this name) say of their samples, over what rules of thumb do."""
        rows = [row for row in self.rows if name in ("", row.candidate.strategy.name)]
        return [found.value for row in rows if (found := self._trained().get(row.candidate.spec))]

    def _trained(self) -> dict[str, Estimate]:
        """What runs say of samples, over what rules of thumb do, by SPEC.

        A loss on the way tells strategies apart. How many more samples several workers need than one it does not tell:
        to such a loss they always need many more. So it counts over what is usual there, and beside rules of thumb.
        """
        trials = tuple((name, len(curve.trials)) for name, curve in self.curves.items())
        known = id(self.level), tuple(self.alone), trials
        if self._ratios_of is None or self._ratios_of[0] != known:
            self._ratios_of = known, self._over_thumbs()
        return self._ratios_of[1]

    def _over_thumbs(self) -> dict[str, Estimate]:
        rows = [(row, middle) for row in self.rows if self.level and (middle := self.curve(row).middle())]
        single = self.samples_alone()
        if self._exact:
            return {row.candidate.spec: (middle / single).scaled(1 / row.factor) for row, middle in rows}
        usual = median([middle.value / row.factor for row, middle in rows] or [1.0])
        error = EARLY * max(1.0, EARLY_BATCHES * self.now.batch / single.value)
        return {
            row.candidate.spec: Estimate(middle.value / row.factor / usual, error).joined(Estimate(1.0, THUMB))
            for row, middle in rows
        }

    @property
    def _exact(self) -> bool:
        """Whether strategies were trained to the target itself."""
        return self.level is not None and self.level.exact

    # -- times ------------------------------------------------------------------------------------------------

    def relative(self, row: CandidateRow) -> Estimate:
        """Its time to the target, in that of one worker alone."""
        return self.samples(row) * (self.step(row) / self.single()).scaled(1 / self.now.workers)

    def seconds(self, row: CandidateRow) -> Estimate | None:
        """Its time to the target, where something was trained to it."""
        alone = self.seconds_alone()
        return self.samples(row) * self.step(row).scaled(self._batches() / self.now.workers) if alone else None

    def seconds_alone(self) -> Estimate | None:
        if not self._exact:
            return None
        return (self.samples_alone() * self.single()).scaled(1 / self.now.batch)

    def to_level(self, row: CandidateRow) -> float | None:
        """Seconds to the level in virtual time, where it was trained to it."""
        middle = self.curve(row).middle()
        return middle.value * row.step.seconds / self.now.batch / self.now.workers if middle else None

    def _batches(self) -> float:
        """Of one worker alone to the level."""
        return self.samples_alone().value / self.now.batch

    # -- what is worth a try ----------------------------------------------------------------------------------

    def behind(self, row: CandidateRow, others: Sequence[CandidateRow]) -> bool:
        """Whether one worker alone, or any of the others, is surely faster."""
        mine = self.relative(row)
        return Estimate(1.0).before(mine) or any(self.relative(other).before(mine) for other in others)

    def settled(self, row: CandidateRow) -> bool:
        """Whether its interval would hardly be narrower if its steps were known exactly."""
        steps = math.hypot(self.step(row).error, self.single().error)
        return steps**2 <= (1 - (1 - NARROWER) ** 2) * self.relative(row).error**2

    # -- order ------------------------------------------------------------------------------------------------

    def ordered(self) -> list[CandidateRow]:
        """The best first; those that are late last, and what nobody has tried behind what is as good."""
        return sorted(self.rows, key=lambda row: (self.missed(row), self.relative(row).value * self.doubt(row)))

    def doubt(self, row: CandidateRow) -> float:
        """By how much it must be better than what was tried."""
        untrained = self._exact and bool(self.curves) and not self.curve(row).trials  # else little is proven
        untimed = row.timing == "formulas" and any(other.timing != "formulas" for other in self.rows)
        return UNPROVEN ** (untrained + untimed)

    def shortlist(self, many: int, among: Sequence[CandidateRow] | None = None) -> list[CandidateRow]:
        """The best of each family, then the best of all; of one mathematics the quickest, of one name only a few."""
        rows, names = [], Counter[str]()
        for row in self.distinct(self.ordered() if among is None else among):
            names[row.candidate.strategy.name] += 1
            if names[row.candidate.strategy.name] <= MOST_OF_A_STRATEGY:
                rows.append(row)
        firsts: dict[str, CandidateRow] = {}
        for row in rows:
            firsts.setdefault(families.name_of(row.candidate.strategy.taxonomy), row)
            if row.candidate.shares:  # its curve holds for many
                firsts.setdefault(row.candidate.mathematics, row)
        chosen = list({id(row): row for row in firsts.values()}.values())[:many]
        chosen += [row for row in rows if row not in chosen][: max(0, many - len(chosen))]
        return [row for row in rows if row in chosen]

    @staticmethod
    def distinct(rows: Iterable[CandidateRow]) -> list[CandidateRow]:
        """The first of each mathematics: its curve is that of all."""
        firsts: dict[str, CandidateRow] = {}
        for row in rows:
            firsts.setdefault(row.candidate.mathematics, row)
        return list(firsts.values())
