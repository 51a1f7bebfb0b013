"""Which strategy should win here, and why? Rules and predictions, joined into a ranked list."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from covey.advise import families, findings, predict, rules
from covey.advise.candidates import ALONE, Candidate, candidates
from covey.advise.predict import StepTime
from covey.advise.ranked import Basis, RankedStrategy
from covey.advise.situation import Situation
from covey.advise.trial import SimulatedTrials, TrialTimes
from covey.advise.world import fastest, slowness
from covey.scoring import target_of
from covey.task import Task

SCHEMA = "covey.advice/1"
FINALISTS = 4  # that are trained several times, where there is time for more of them
TIMED = 12  # of more than 64 workers, so many candidates are timed
UNEVEN = 0.1  # spread of step times from which slow workers matter
UNPROVEN = 1.15  # what only rules of thumb speak for must be better by this to come first
CLOSE = 0.1  # times nearer than this are no difference

Sure = Literal["quite sure", "a close call", "a rough guess"]


class Advice(msgspec.Struct, kw_only=True):
    """What was found, best first."""

    schema: str = SCHEMA
    task: str
    workers: int
    until: str | None
    choices: list[RankedStrategy]
    findings: list[str]  # in plain words
    sure: Sure
    why_sure: str
    compute: float  # seconds of a batch
    model: int  # bytes

    def to_json(self) -> str:
        return msgspec.json.format(msgspec.json.encode(self), indent=1).decode() + "\n"


@dataclass(slots=True, kw_only=True)
class CandidateRow:
    """What is known of a candidate so far."""

    candidate: Candidate
    step: StepTime
    factor: float  # of samples, against one worker alone
    basis: Basis = "formulas"
    reached: TrialTimes = field(default_factory=TrialTimes)
    missed: bool = False  # a short run did not come to the target

    def guess(self, now: Situation) -> float:
        """Its time to the target in that of one worker alone, as far as rules of thumb tell."""
        single = now.compute * slowness(fastest(now.cluster, now.workers)[0], 1)[0]
        return self.step.seconds * self.factor / now.workers / single


def advise(
    task: Task, name: str, now: Situation, *, until: str | None = None, trials: SimulatedTrials | None = None,
    told: Callable[[str], None] = lambda _: None, command: str = "",
) -> Advice:  # fmt: skip
    """Rank what the catalog holds for this task on this cluster; without `trials`, by formulas alone."""
    if until:
        target_of(task, until)
    rows = [_guessed(candidate, now) for candidate in candidates(task, now)]
    rows.sort(key=lambda row: row.guess(now))
    alone = TrialTimes()
    if trials:
        rows = _timed(rows, trials, now, told)
        told("training one worker alone, in virtual time")
        alone, until = trials.alone(until)
        many = trials.runs(alone)
        _trained(sorted(shortlist(rows, many), key=lambda row: row.guess(now)), trials, until, alone, told)
        if many > 2 * FINALISTS and (alone.seconds or _best(rows)):
            alone = trials.alone_again(until, alone)
            _repeated(rows, trials, until, alone, told)
    return _concluded(rows, alone, name, now, until, command)


def _guessed(candidate: Candidate, now: Situation) -> CandidateRow:
    step = predict.step(candidate.strategy, now)
    return CandidateRow(
        candidate=candidate, step=step, factor=predict.samples_needed(candidate.strategy, now, step.staleness)
    )


def _timed(
    rows: list[CandidateRow], trials: SimulatedTrials, now: Situation, told: Callable[[str], None]
) -> list[CandidateRow]:
    """The same, with steps that were timed."""
    for row in rows if now.workers <= 64 else rows[:TIMED]:
        told(f"timing {row.candidate.spec}")
        if step := trials.timed(row.candidate):
            row.step, row.basis = step, "timed in virtual time"
    return sorted(rows, key=lambda row: row.guess(now))


def _trained(
    rows: list[CandidateRow], trials: SimulatedTrials, until: str, alone: TrialTimes, told: Callable[[str], None]
) -> None:
    """Train them, as rules of thumb say little of how many samples a strategy needs; who falls behind is left there."""
    for row in rows:
        told(f"training with {row.candidate.spec}, in virtual time")
        limit = trials.limit(alone, _best(rows), row.step.seconds)
        reached = trials.to_target(row.candidate, until, limit)
        if reached.seconds is None and reached.tried and not limit.fair:
            row.reached = TrialTimes(tried=reached.tried)  # it may be good, and takes longer than that
        else:
            row.reached, row.missed, row.basis = reached, reached.seconds is None, "trained in virtual time"


def _repeated(
    rows: list[CandidateRow], trials: SimulatedTrials, until: str, alone: TrialTimes, told: Callable[[str], None]
) -> None:
    """Train the best of them again."""
    best = sorted((row for row in rows if row.reached.seconds), key=lambda row: row.reached.seconds or 0.0)
    for row in best[:FINALISTS]:
        told(f"training with {row.candidate.spec} again")
        limit = trials.limit(alone, _best(rows), row.step.seconds)
        row.reached = trials.again(row.candidate, until, limit, row.reached)
        row.missed = row.reached.seconds is None


def _best(rows: Sequence[CandidateRow]) -> float | None:
    """When the first of them was at the target."""
    return min((seconds for row in rows if (seconds := row.reached.seconds)), default=None)


def shortlist(rows: Sequence[CandidateRow], many: int) -> list[CandidateRow]:
    """The best of each family, then the best of all."""
    firsts: dict[str, CandidateRow] = {}
    for row in rows:
        firsts.setdefault(families.name_of(row.candidate.strategy.taxonomy), row)
    chosen = list(firsts.values())
    chosen += [row for row in rows if row not in chosen][: max(0, many - len(chosen))]
    return chosen


def _concluded(
    rows: list[CandidateRow], alone: TrialTimes, name: str, now: Situation, until: str | None, command: str
) -> Advice:  # fmt: skip
    unit = _unit(rows, alone, now)
    found = [_choice(row, unit, alone, now) for row in rows]
    trained = any(choice.basis == "trained in virtual time" for choice in found)
    ranked = sorted([_alone(alone, now), *found], key=lambda choice: _order(choice, now, trained))
    for choice in ranked:
        choice.command = findings.command(name, choice.spec, choice.workers, until, command)
    sure, why = _sure(ranked, now)
    steps = {row.candidate.spec: row.step for row in rows}
    offers = {row.candidate.spec: row.candidate.offer for row in rows}
    return Advice(
        task=name, workers=now.workers, until=until, choices=ranked,
        findings=findings.of(ranked, now, steps, offers), sure=sure, why_sure=why, compute=now.compute, model=now.model,
    )  # fmt: skip


def _unit(rows: list[CandidateRow], alone: TrialTimes, now: Situation) -> float | None:
    """Seconds for one unit of a guess: what those that were trained took, on the whole."""
    ratios = sorted(row.reached.seconds / row.guess(now) for row in rows if row.reached.seconds)
    return ratios[len(ratios) // 2] if ratios else alone.seconds


def _choice(row: CandidateRow, unit: float | None, alone: TrialTimes, now: Situation) -> RankedStrategy:
    seconds = row.reached.seconds
    if seconds is None and unit is not None and not row.missed:
        seconds = max(row.guess(now) * unit, row.reached.tried)
    return RankedStrategy(
        spec=row.candidate.spec, workers=now.workers, step=row.step.seconds, exchange=row.step.share(),
        relative=seconds / alone.seconds if seconds and alone.seconds else row.guess(now), seconds=seconds,
        money=seconds * now.price / 3600 if now.price and seconds else None, basis=row.basis,
        family=families.name_of(row.candidate.strategy.taxonomy), staleness=row.step.staleness,
        reasons=_reasons(row, now), risks=_risks(row), missed=row.missed, times=list(row.reached.times),
        tried=row.reached.tried,
    )  # fmt: skip


def _alone(alone: TrialTimes, now: Situation) -> RankedStrategy:
    world, rank = fastest(now.cluster, now.workers)
    price, seconds = world.price.get(0), alone.seconds
    return RankedStrategy(
        spec=ALONE, workers=1, relative=1.0, seconds=seconds, step=now.compute * slowness(world, 1)[0],
        exchange=0.0, family="one worker", money=seconds * price / 3600 if price and seconds else None,
        basis="trained in virtual time" if seconds is not None else "formulas",
        reasons=[f"worker {rank}, the fastest, by itself" if len(set(now.slownesses)) > 1 else "nobody to wait for"],
    )  # fmt: skip


def _reasons(row: CandidateRow, now: Situation) -> list[str]:
    place = row.candidate.strategy.taxonomy
    share = row.step.share()
    found = [f"exchange takes {share:.0%} of a step" if share >= 0.01 else "exchange takes next to no time"]
    if now.spread >= UNEVEN and rules.holds_together(now.spread, place.scheduling, now.spot).ok:
        found.append("slow workers hold nobody up")
    if now.reproducible:
        found.append(rules.repeatable(True, place.scheduling == "synchronous").reason)
    return [*found, *row.candidate.compression, rules.rate_rule(place.optimization, place.scheduling, now.workers)]


def _risks(row: CandidateRow) -> list[str]:
    found = ["a run of it was not at the target when others, or one worker alone, had long been"] if row.missed else []
    found += row.candidate.risks
    place = row.candidate.strategy.taxonomy
    if place.optimization == "central" and place.scheduling != "synchronous" and row.step.staleness >= 1:
        found.append(f"a gradient is about {row.step.staleness:.0f} updates old when it is applied")
    knobs = families.FAMILIES[families.name_of(place)].knobs
    if knobs > 2:
        found.append(f"{knobs} settings more to find")
    return found


def _order(choice: RankedStrategy, now: Situation, trained: bool) -> tuple[bool, float, float, float]:
    """By time, to a hundredth; what is equally fast, by the survey's preferences.

    Where some were trained, those for which only rules of thumb speak must be better; one worker alone is what all are
    measured by.
    """
    family = families.FAMILIES.get(choice.family)
    merit = families.merit(family, now.spread, now.reproducible) if family else 1.0
    proven = choice.basis == "trained in virtual time" or not trained or family is None
    return (choice.missed, round(choice.relative * (1.0 if proven else UNPROVEN), 2), -merit, choice.step)


def _sure(ranked: Sequence[RankedStrategy], now: Situation) -> tuple[Sure, str]:
    first = ranked[0]
    timed = "" if now.measured else "; the time of a batch is what the cluster is said to have, it was not measured"
    if first.basis != "trained in virtual time":
        return "a rough guess", f"samples to the target come from rules of thumb{timed}"
    rivals = [_called(choice) for choice in ranked[1:] if _near(choice, first)]
    if rivals:
        told = f"{', '.join(rivals[:3])} would take about as long"
        return "a close call", f"{told}, as far as a simulation can tell{timed}"
    lead = ranked[1].relative / first.relative - 1 if len(ranked) > 1 else 0.0
    runs = "" if len(first.times) > 1 else "; but each was trained only once"
    return "quite sure", f"the next best would take {lead:.0%} longer{runs}{timed}"


def _near(choice: RankedStrategy, first: RankedStrategy) -> bool:
    """Whether it is hardly slower than the first, or was as fast in some of its runs."""
    if choice.missed:
        return False
    overlaps = bool(choice.times and first.times) and min(choice.times) <= max(first.times)
    return choice.relative < first.relative * (1 + CLOSE) or (len(first.times) > 1 and overlaps)


def _called(choice: RankedStrategy) -> str:
    return "one worker alone" if choice.workers == 1 else choice.spec
