"""Which strategy should win here, and why? Formulas for all, trials of the promising, real steps of the best."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean

from covey.advise import findings, predict
from covey.advise.candidates import Candidate, candidates
from covey.advise.conclude import conclude
from covey.advise.known import CandidateRow, Curve, Known
from covey.advise.ranked import Advice
from covey.advise.real_steps import RealSteps, measure_best, to_spend
from covey.advise.situation import Situation
from covey.advise.trials.trial import SimulatedTrials
from covey.scoring import target_of
from covey.task import Task
from covey.task.schedule import depends_on_length

TIMED, LARGE = 24, 12  # candidates that are timed in virtual time; of more than 64 workers, this many
HALVINGS = (24, 8, 8, 4, 4)  # strategies that are trained in each turn, while there is time: every turn has its seed
FIRSTS = 3  # that are trained in any case

Told = Callable[[str], None]


def advise(
    task: Task, name: str, now: Situation, *, until: str | None = None, trials: SimulatedTrials | None = None,
    real: RealSteps | None = None, told: Told = lambda _: None, command: str = "", epochs: int | None = None,
) -> Advice:  # fmt: skip
    """Rank what the catalog holds for this task on this cluster.

    Without `trials` and `real`, by formulas alone. Ctrl-C ends the search, and the advice says so. `epochs` is the
    length of the run that the advice is for, where it was given.
    """
    if until:
        target_of(task, until)
    known = Known(now=now, rows=[_guessed(candidate, now) for candidate in candidates(task, now)])
    if trials and real:
        trials.spend -= to_spend(now)  # both together take a minute
    try:
        if trials:
            _time(known, trials, told)
            if not trials.late:
                told("training one worker alone, in virtual time")
                known.level, until = trials.level(until)
                known.alone.append(known.level.samples)
                _train(known, trials, told)
            known.late = trials.late
        if real:
            measure_best(known, real, told)
    except KeyboardInterrupt:
        known.interrupted = True
    found = conclude(known, name, until, command, epochs)
    if trials and depends_on_length(task.scheduler, task.rate):
        found.epochs = trials.epochs
        found.findings.append(findings.schedule(trials.epochs, epochs is not None))
    return found


def _guessed(candidate: Candidate, now: Situation) -> CandidateRow:
    step = predict.step(candidate.strategy, now)
    return CandidateRow(
        candidate=candidate, step=step, factor=predict.samples_needed(candidate.strategy, now, step.staleness)
    )


def _time(known: Known, trials: SimulatedTrials, told: Told) -> None:
    """Time the steps of the best of each strategy and codec by formulas, and what the summary speaks of."""
    many = TIMED if known.now.workers <= 64 else LARGE
    chosen = known.ordered()[:many]
    chosen += [row for row in known.shortlist(many) if row not in chosen]
    for row in chosen[: 2 * many]:
        if trials.late:
            return
        told(f"timing {row.candidate.spec}")
        if step := trials.timed(row.candidate):
            row.step, row.timing = step, "virtual time"


def _train(known: Known, trials: SimulatedTrials, told: Told) -> None:
    """Successive halving: who does best is trained again with the next seed, as long as there is CPU time.

    Where there is no time for all, a strategy that is surely slower than another, or than one worker alone, is not
    trained after the first few: how sure that is follows from rules of thumb, which a trial may prove wrong.
    """
    spent: list[float] = []
    for turn, many in enumerate(HALVINGS):
        if turn and known.level and not trials.late:
            known.alone.append(trials.again(known.level, turn))
        ready = [row for row in known.ordered() if row.timing == "virtual time"]
        again = [row for row in known.distinct(ready) if len(known.curve(row).trials) == turn and not known.missed(row)]
        for row in known.shortlist(many, ready) if turn == 0 else again[:many]:
            if trials.late or (len(spent) >= FIRSTS and trials.left <= fmean(spent)):
                return
            dear = len(spent) >= FIRSTS and trials.left < sum(HALVINGS) * fmean(spent)
            if dear and known.behind(row, _trained(known)):
                continue
            before = trials.left
            _train_one(row, known, trials, turn, told)
            spent.append(before - trials.left)


def _trained(known: Known) -> list[CandidateRow]:
    return [row for row in known.rows if known.curve(row).samples and not known.missed(row)]


def _train_one(row: CandidateRow, known: Known, trials: SimulatedTrials, turn: int, told: Told) -> None:
    """One run to the level, for all strategies of this mathematics; who falls behind is left there."""
    assert known.level is not None
    told(f"training with {row.candidate.spec}, in virtual time{', with another seed' if turn else ''}")
    best = min((seconds for other in known.rows if (seconds := known.to_level(other))), default=None)
    limit = trials.limit(known.level, best, row.step.seconds)
    curve = known.curves.setdefault(row.candidate.mathematics, Curve())
    curve.trials[turn] = trials.train(row.candidate, known.level, limit, turn)
