"""Run one strategy after the other, keep what is done, and go on where an earlier comparison stopped."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

from covey.compare.cases import Case, cases
from covey.compare.finished_runs import FinishedRuns
from covey.compare.outcomes import ComparedRun, Comparison
from covey.errors import CoveyError
from covey.observe.progress import Watcher
from covey.run import fit
from covey.run.clusters import engine_of
from covey.run.options import options as options_of
from covey.target import parse_target
from covey.task import Task, load_task, task_file

WARM = 2  # steps of a run that is thrown away: the first of a series reads files that the others find in memory

Shown = Callable[[Case, int, int], AbstractContextManager[Watcher | None]]


def compare(
    task: Task | str, strategies: str, workers: int = 2, *, until: str | None = None, rates: Sequence[float] = (1.0,),
    repeat: int = 1, folder: str | os.PathLike[str] | None = None, seed: int = 0, command: str = "",
    shown: Shown = lambda *_: nullcontext(), told: Callable[[str], None] | None = None, **options: Any,
) -> Comparison:  # fmt: skip
    """Train a task with several strategies, one after the other: the same weights, samples and target for all.

    `options` are those of `covey.fit`. `shown` is asked for a watcher of each case, with its number and how many there
    are; `told` is told what takes long before that. With a `folder`, finished runs are kept there and not done again.
    A strategy that fails is an outcome too.
    """
    todo = cases(strategies, rates, repeat)
    engine_of(options_of(options))
    loaded = load_task(task, told) if isinstance(task, str) else task
    until = _directed(until, loaded) if until else None
    engine = options.get("engine", "local")
    cluster = options.get("cluster")
    whole = Comparison(
        task=task if isinstance(task, str) else "a task of this process", workers=workers, engine=engine, until=until,
        better=dict(loaded.better), command=command,
        prices=dict(cluster.price) if cluster else {}, watts=dict(cluster.watts) if cluster else {},
    )  # fmt: skip
    source = hashlib.sha256(task_file(task).read_bytes()).hexdigest() if isinstance(task, str) else ""
    finished = FinishedRuns(Path(folder), whole, seed, options, source) if folder is not None else None
    with finished or nullcontext() as kept:
        _run_all(task, todo, whole, kept, shown, {**options, "until": until, "seed": seed, "command": command})
    return whole


def _run_all(
    task: Task | str, todo: list[Case], whole: Comparison, kept: FinishedRuns | None, shown: Shown,
    options: dict[str, Any],
) -> None:  # fmt: skip
    """Fill the comparison with the outcomes of all its cases, until it is interrupted."""
    warm, seed, workers = whole.engine == "simulated", options["seed"], whole.workers
    for number, case in enumerate(todo):
        outcome = kept.read(case) if kept else None
        if outcome is None:
            if not warm:
                _warm_up(task, case, workers, options)
                warm = True
            given = {**options, "seed": seed + case.repeat, "rate": case.rate, "traced": case.repeat == 0}
            with shown(case, number, len(todo)) as watcher:
                outcome = _run(task, case, workers, {**given, "watcher": watcher})
            if outcome.result is not None and outcome.result.stopped == "interrupted":
                whole.interrupted = True
                break
            if kept:
                kept.write(case, outcome)
        whole.outcomes.append(outcome)


def _directed(until: str, task: Task) -> str:
    """The target as it was typed, unless only the task knows in which direction it lies."""
    target = parse_target(until, task.better)
    return until if parse_target(until) == target else str(target)


def _run(task: Task | str, case: Case, workers: int, given: dict[str, Any]) -> ComparedRun:
    outcome = ComparedRun(**asdict(case))
    try:
        outcome.result = fit(task, case.spec, workers, **given)
        recording = outcome.result.recording
        outcome.recording = recording.excerpt() if recording else None
    except CoveyError as error:
        outcome.failure = str(error)
    except Exception as error:  # whatever the task's own code raises: the other strategies may do without it
        outcome.failure = f"{type(error).__name__}: {error}"
    return outcome


def _warm_up(task: Task | str, case: Case, workers: int, options: dict[str, Any]) -> None:
    short = {name: value for name, value in options.items() if name not in ("epochs", "steps", "until", "command")}
    _run(task, case, workers, {**short, "steps": WARM})
