"""How long do real steps take? Short runs of the best few on the machines that the advice is for."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from covey.advise.candidates import ALONE, SYNCHRONOUS
from covey.advise.estimate import Estimate
from covey.advise.known import CandidateRow, Known
from covey.advise.predict import round_to_periods
from covey.advise.situation import Situation
from covey.errors import CoveyError, PlanError
from covey.observe.contention import Contention
from covey.observe.step_time import WARM, recorded_step
from covey.run import fit
from covey.task import Task

Rounds = tuple[tuple[int, int], ...]

ROUNDS: Rounds = ((8, 30), (4, 60), (4, 60))  # how many strategies, and how many steps of each: then the better half
OF_SLOW: Rounds = ((4, 30), (2, 60))  # where steps are slow
FIRSTS = 3  # that are measured in any case, unless slow: how long steps of others take is judged by these
LONGEST = 15.0  # seconds that a run should take: of slow steps there are fewer
FEWEST = 10  # steps
SPEND = 12.0  # seconds of all workers' computing in these runs: of slow steps there are fewer
START = 1.0  # seconds of CPU time of a run's processes besides their steps; 0.4 where models and data are small


@dataclass(frozen=True, slots=True, kw_only=True)
class RealSteps:
    """Short runs of a task on an engine with real processes, without a score."""

    task: Task | str
    engine: str
    workers: int
    seed: int = 0
    insecure: bool = False
    threads: int | None = None
    until: float | None = None  # of the monotonic clock: no run begins after it
    contention: list[Contention] = field(default_factory=list)  # of the runs so far

    @property
    def late(self) -> bool:
        """Whether no further run may begin."""
        return self.until is not None and time.monotonic() >= self.until

    @property
    def disturbed(self) -> bool:
        """Whether other programs used the cores in any of the runs."""
        return any(one.disturbed for one in self.contention)

    def measure(self, spec: str, workers: int, steps: int, turn: int) -> float:
        """Seconds of a step of the mean worker."""
        result = fit(
            self.task, spec, workers, engine=self.engine, steps=steps, seed=self.seed + turn, scores=0, traced=True,
            insecure=self.insecure, threads=self.threads, runs=False,
        )  # fmt: skip
        if result.stopped == "interrupted":
            raise KeyboardInterrupt
        if result.contention:
            self.contention.append(result.contention)
        step = recorded_step(result.recording) if result.recording else 0.0
        return step or result.seconds / steps

    def measure_alone(self, steps: int, turn: int) -> float:
        """The same of one worker alone, also of a model that needs workers that take each step together."""
        try:
            return self.measure(ALONE, 1, steps, turn)
        except PlanError:
            return self.measure(SYNCHRONOUS, 1, steps, turn)


def measure_best(known: Known, real: RealSteps, told: Callable[[str], None]) -> None:
    """Successive halving: the best eight and one worker alone, then the best of them again, with the same seeds.

    A strategy that is surely slower than the first, or than one worker alone, is not measured, nor is one again whose
    steps are known well beside what is not known of its samples. One worker alone always is: all are compared with it.
    """
    for turn, (many, steps) in enumerate(_rounds(known.now)):
        if real.late:
            known.late = True
            return
        ready = known.shortlist(many, known.ordered()) if turn == 0 else _unsettled(known)[:many]
        if turn < 2 or ready:
            fewer = _fewer(steps, known.single().value, known.now)
            told(f"measuring {fewer} real steps of one worker alone")
            known.alone_real.append(real.measure_alone(fewer, turn))
            known.disturbed |= real.disturbed
        measured = 0
        for row in ready:
            anyway = measured < FIRSTS and FEWEST * known.step(row).value <= LONGEST
            if anyway or not known.behind(row, _measured(known)):
                measured += _measure(row, known, real, steps, turn, told)


def _measured(known: Known) -> list[CandidateRow]:
    return [row for row in known.ordered() if row.real and not known.missed(row)]


def _unsettled(known: Known) -> list[CandidateRow]:
    """The strategies that may be the fastest, where real steps would tell: none if that is one for sure."""
    ready = _measured(known)
    rivals = [row for row in ready if not known.behind(row, ready[:1])]
    sure = len(rivals) == 1 and known.relative(rivals[0]).before(Estimate(1.0))
    return [] if sure else [row for row in rivals if not known.settled(row)]


def _measure(
    row: CandidateRow, known: Known, real: RealSteps, steps: int, turn: int, told: Callable[[str], None]
) -> bool:  # fmt: skip
    """Measure whole periods of a strategy; whether that was done."""
    if real.late:
        known.late = True
        return False
    wanted = _fewer(steps, known.step(row).value, known.now)
    many = round_to_periods(row.candidate.strategy, wanted, 1 + WARM)
    if many > 2 * wanted:
        told(f"not measuring {row.candidate.spec}: one period of its exchange takes too long")
        return False
    told(f"measuring {many} real steps of {row.candidate.spec}")
    try:
        row.real.append(real.measure(row.candidate.spec, real.workers, many, turn))
        row.timing = "real steps"
        known.disturbed |= real.disturbed
    except CoveyError as error:
        row.failure = str(error).splitlines()[0]
    return not row.failure


def to_spend(now: Situation) -> float:
    """Seconds of this machine's CPU time that all runs take together, about."""
    rounds = _rounds(now)
    return min(SPEND, _computing(now, rounds)) + START * sum(1 + many for many, _ in rounds)


def _rounds(now: Situation) -> Rounds:
    return ROUNDS if _computing(now, ROUNDS) <= SPEND else OF_SLOW


def _computing(now: Situation, rounds: Rounds) -> float:
    """Seconds of CPU time that whole rounds compute."""
    return sum(many * steps for many, steps in rounds) * now.workers * now.compute


def _fewer(steps: int, step: float, now: Situation) -> int:
    """As many steps, unless they take long."""
    if step <= 0 or now.compute <= 0:
        return steps
    return max(FEWEST, round(min(steps, steps * SPEND / _computing(now, _rounds(now)), LONGEST / step)))
