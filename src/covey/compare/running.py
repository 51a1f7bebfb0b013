"""Run the strategies in turn, seed by seed, until one has separated; go on where an earlier comparison stopped."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Literal

from covey.compare.cases import Case, Entrant, entrants
from covey.compare.finished_runs import FinishedRuns
from covey.compare.outcomes import ComparedRun, Comparison
from covey.compare.race import Rounds, rounds
from covey.compare.verdict import conclude, how_long, standings
from covey.engines import machine
from covey.errors import CoveyError, PlanError, UnknownMetric
from covey.names import option, task_file
from covey.observe.facts import INSIDE, RunFacts
from covey.observe.progress import Watcher
from covey.run import fit
from covey.run.best_model import preference
from covey.run.clusters import engine_of
from covey.run.options import options as options_of
from covey.run.record import folder_of_runs, recording
from covey.scoring import target_of
from covey.simulate import parse_duration
from covey.simulate.units import format_duration
from covey.target import parse_target
from covey.task import Task, load_task

WARM = 2  # steps of a run that is thrown away: the first of a series reads files that the others find in memory
WITHIN = "60s"
SCORES = 8  # in a pass over the data
CONFIRM = 2  # scores in a row that must meet the target: a single one may be luck
AGAIN = 10  # disturbed runs of a comparison are done again, each once and at most this many

Shown = Callable[[Case, int], AbstractContextManager[Watcher | None]]


def compare(
    task: Task | str, strategies: str, workers: int = 2, *, until: str | None = None, rates: Sequence[float] = (1.0,),
    repeat: int | None = None, within: str | None = None, folder: str | os.PathLike[str] | None = None, seed: int = 0,
    command: str = "", runs: str | os.PathLike[str] | Literal[False] | None = None,
    shown: Shown = lambda *_: nullcontext(), told: Callable[[str], None] = lambda line: None,
    **options: Any,
) -> Comparison:  # fmt: skip
    """Train a task with several strategies, in turn: the same weights, samples and target for all.

    Each runs with 5 to 15 seeds, until one is surely first, or no further round fits into the time `within`; `repeat`
    fixes the number of seeds. `options` are those of `covey.fit`. `shown` is asked for a watcher of each case, with its
    number; `told` is told what takes long, and how each run went. With a `folder`, finished runs are kept there and not
    done again. A SPEC that cannot be resolved, or that stands twice, is refused before anything starts, and a target
    that names no metric of the task with the first score; a strategy that fails as it runs is an outcome too.
    """
    often = {} if options.get("score_every") else {"scores": SCORES}
    options = {**often, **({"confirm": CONFIRM} if until is not None else {}), **options}
    entered = entrants(strategies, workers, rates)
    plan = rounds(repeat, racing=until is not None and len({entrant.spec for entrant in entered}) > 1)
    limit = time_limit(repeat, within)
    checked = options_of({**options, "until": until})
    engine_of(checked)
    if cluster := checked.virtual.cluster:
        cluster.check(workers)
    loaded = load_task(task, told) if isinstance(task, str) else task
    preference(loaded, checked.budget)
    until = _directed(until, loaded) if until else None
    whole = Comparison(
        task=task if isinstance(task, str) else "a task of this process", workers=workers,
        engine=options.get("engine", "local"), until=until, better=dict(loaded.better), command=command,
        prices=dict(cluster.price) if cluster else {}, watts=dict(cluster.watts) if cluster else {},
    )  # fmt: skip
    source = hashlib.sha256(task_file(task).read_bytes()).hexdigest() if isinstance(task, str) else ""
    finished = FinishedRuns(Path(folder), whole, seed, options, source) if folder is not None else None
    place = folder_of_runs(runs)
    known = facts_of_comparison(whole, strategies, seed)
    record = recording(place, known, task if isinstance(task, str) else "", told, kind="comparison") if place else None
    with finished or nullcontext() as kept, record or nullcontext() as folder_of_record:
        inside = folder_of_record.path / INSIDE if folder_of_record else False
        given = {**options, "until": until, "seed": seed, "command": command, "runs": inside}
        race = RunningRace(task, whole, plan, limit, kept, shown, told, given)
        race.run(entered)
        conclude(whole, plan, race.more())
        if folder_of_record:
            folder_of_record.keep(whole.to_json())
            folder_of_record.journal.end("interrupted" if whole.interrupted else "compared")
    return whole


def facts_of_comparison(whole: Comparison, strategies: str, seed: int) -> RunFacts:
    """What a record says of a comparison before it starts."""
    return RunFacts(
        task=whole.task, strategy=strategies, taxonomy={}, engine=whole.engine, workers=whole.workers, seed=seed,
        command=whole.command, settings={"until": whole.until} if whole.until else {}, machine=machine.describe(),
        versions=machine.versions(),
    )  # fmt: skip


def time_limit(repeat: int | None, within: str | None) -> float | None:
    """Seconds after which no round begins; None where the number of rounds is fixed."""
    if repeat is not None:
        if within is not None:
            raise PlanError(
                f"{option('repeat', repeat)} fixes the number of runs, so {option('within', within)} would have no "
                "effect: omit one of them"
            )
        return None
    seconds = parse_duration(WITHIN if within is None else within)
    if seconds <= 0:
        raise PlanError(f"{option('within', within)}: a comparison takes time; write for example 60s or 5m")
    return seconds


class RunningRace:
    """Fills a comparison with outcomes, round by round, until it is decided, out of time or interrupted."""

    def __init__(
        self, task: Task | str, whole: Comparison, plan: Rounds, limit: float | None, kept: FinishedRuns | None,
        shown: Shown, told: Callable[[str], None], options: dict[str, Any],
    ) -> None:  # fmt: skip
        self.task, self.whole, self.plan, self.limit, self.kept = task, whole, plan, limit, kept
        self.shown, self.told, self.options = shown, told, options
        self.warm = whole.engine == "simulated"
        self.again = AGAIN
        self.began = time.monotonic()
        self.took: dict[Entrant, float] = {}  # seconds of its last run, with start and scores
        self.late = False  # no further round fits

    def run(self, entered: Sequence[Entrant]) -> None:
        try:
            for number in range(self.plan.most):
                for entrant in self.runners(entered, number):
                    self.one(Case(*entrant, number))
        except KeyboardInterrupt:
            self.whole.interrupted = True

    def runners(self, entered: Sequence[Entrant], number: int) -> list[Entrant]:
        """Who runs in the round of this number; nobody when the race is over."""
        whole = self.whole
        trained = any(run.reached and not run.untrained for run in whole.outcomes)
        if self.late or (number and not self.plan.fixed and not trained):
            return []
        failed = {run.spec for run in whole.outcomes if run.refused or (run.failure and not self.plan.fixed)}
        able = [entrant for entrant in entered if entrant.spec not in failed]
        if number and not self.plan.fixed and len({entrant.spec for entrant in able}) < 2:
            return []
        left = standings(whole, self.plan).runners(able, number)
        if not number or self.limit is None:
            return left
        self.late = not self.fits(left)
        return [] if self.late or (whole.busy and number >= self.plan.least) else left

    def fits(self, runs: Sequence[Entrant]) -> bool:
        """Whether there is time for a run of each, as long as the last one of it."""
        end = time.monotonic() - self.began + sum(self.took.get(one, 0.0) for one in runs)
        return self.limit is None or end <= self.limit

    def more(self) -> str:
        """How to get enough runs, where time was short."""
        done = max((run.repeat + 1 for run in self.whole.outcomes), default=1)
        if not self.late:
            return f"omit {option('repeat')}" if self.plan.fixed and self.plan.most < Rounds().least else ""
        wanted = self.plan.least if done < self.plan.least else self.plan.most
        return f"give more time, such as {option('within', how_long(1.2 * wanted * sum(self.took.values())))}"

    def one(self, case: Case) -> None:
        """Run a case, unless that is done already; once more if other programs disturbed it and there is time."""
        outcome = self.kept.read(case) if self.kept else None
        if outcome is None:
            outcome = self.new(case)
            if outcome.disturbed and self.again and not self.fits([Entrant(case.spec, case.rate)]):
                self.told(f"{case}: other programs used the cores, and there is no time to run it again")
            elif outcome.disturbed and self.again:
                self.again -= 1
                self.told(f"{case}: other programs used the cores; running it again")
                outcome = self.new(case)
            if self.kept:
                self.keep(self.kept, case, outcome)
        self.whole.outcomes.append(outcome)

    def keep(self, kept: FinishedRuns, case: Case, outcome: ComparedRun) -> None:
        """Write a finished run down; a full disk costs that file, not the comparison."""
        try:
            kept.write(case, outcome)
        except OSError as error:
            self.told(f"{case} is not kept in {kept.folder}: {error.strerror}; the comparison goes on")

    def new(self, case: Case) -> ComparedRun:
        options, began = self.options, time.monotonic()
        if not self.warm:
            unlike = ("epochs", "steps", "until", "confirm", "score_every", "best", "patience", "command", "runs")
            short = {name: value for name, value in options.items() if name not in unlike}
            _run(self.task, case, self.whole.workers, {**short, "steps": WARM, "runs": False})
            self.warm = True
            began = time.monotonic()
        given = {**options, "seed": options["seed"] + case.repeat, "rate": case.rate, "traced": case.repeat == 0}
        with self.shown(case, len(self.whole.outcomes)) as watcher:
            outcome = _run(self.task, case, self.whole.workers, {**given, "watcher": watcher})
        if outcome.result is not None and outcome.result.stopped == "interrupted":
            raise KeyboardInterrupt
        self.took[Entrant(case.spec, case.rate)] = time.monotonic() - began
        if case.repeat:
            self.told(f"{case}: {_how(outcome)}")
        return outcome


def _how(outcome: ComparedRun) -> str:
    if outcome.result is None:
        return f"failed: {outcome.failure.splitlines()[0]}"
    reached = outcome.result.reached
    return format_duration(reached.seconds if reached else outcome.result.seconds) + ("" if reached else ", missed")


def _directed(until: str, task: Task) -> str:
    """The target as it was typed, unless only the task knows in which direction it lies."""
    target = target_of(task, until)
    return until if parse_target(until) == target else str(target)


def _run(task: Task | str, case: Case, workers: int, given: dict[str, Any]) -> ComparedRun:
    outcome = ComparedRun(spec=case.spec, rate=case.rate, repeat=case.repeat)
    try:
        outcome.result = fit(task, case.spec, workers, **given)
        recording = outcome.result.recording
        outcome.recording = recording.excerpt() if recording else None
    except UnknownMetric:
        raise  # no strategy could reach it
    except CoveyError as error:
        outcome.failure, outcome.refused = str(error), isinstance(error, PlanError)
    except Exception as error:  # whatever the task's own code raises: the other strategies may do without it
        outcome.failure = f"{type(error).__name__}: {error}"
    return outcome
