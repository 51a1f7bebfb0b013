"""Run one strategy after the other, keep what is done, and go on where an earlier comparison stopped."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from covey.compare.cases import Case, cases
from covey.decoding import WireFormat
from covey.errors import CoveyError, PlanError
from covey.observe.progress import Watcher
from covey.observe.recording import Recording
from covey.observe.result import Result
from covey.run import fit
from covey.run.fitting import engine_of
from covey.run.options import options as options_of
from covey.target import Better, parse_target
from covey.task import Task, load_task

SCHEMA = "covey.comparison/1"
READABLE = 100  # characters of a SPEC in the name of a file
WARM = 2  # steps of a run that is thrown away: the first of a series reads files that the others find in memory

Shown = Callable[[Case, int, int], AbstractContextManager[Watcher | None]]


class ComparedRun(msgspec.Struct, kw_only=True):
    """How one run of a comparison went: a result, or the reason why there is none."""

    spec: str
    rate: float = 1.0
    repeat: int = 0
    result: Result | None = None
    failure: str = ""
    recording: Recording | None = None  # a few steps of the first repetition


_outcomes: WireFormat[ComparedRun] = WireFormat("outcome of a run", ComparedRun, "json")


class Comparison(msgspec.Struct, kw_only=True):
    """A comparison as it is kept, shown and drawn."""

    schema: str = SCHEMA
    task: str
    workers: int
    engine: str
    until: str | None
    better: dict[str, Better] = {}  # what the task declares of its metrics
    command: str = ""
    prices: dict[int, float] = {}  # of a worker, money per hour
    watts: dict[int, float] = {}
    outcomes: list[ComparedRun] = []
    interrupted: bool = False

    def to_json(self) -> str:
        return msgspec.json.format(msgspec.json.encode(self), indent=1).decode() + "\n"


def compare(
    task: Task | str, strategies: str, workers: int = 2, *, until: str | None = None, rates: Sequence[float] = (1.0,),
    repeat: int = 1, folder: str | os.PathLike[str] | None = None, seed: int = 0, command: str = "",
    shown: Shown = lambda *_: nullcontext(), **options: Any,
) -> Comparison:  # fmt: skip
    """Train a task with several strategies, one after the other: the same weights, samples and target for all.

    `options` are those of `covey.fit`. `shown` is asked for a watcher of each case, with its number and how many there
    are. With a `folder`, finished runs are kept there and not done again. A strategy that fails is an outcome too.
    """
    todo = cases(strategies, rates, repeat)
    engine_of(options_of(options))
    loaded = load_task(task) if isinstance(task, str) else task
    until = _directed(until, loaded) if until else None
    engine = options.get("engine", "local")
    cluster = options.get("cluster")
    whole = Comparison(
        task=task if isinstance(task, str) else "a task of this process", workers=workers, engine=engine, until=until,
        better=dict(loaded.better), command=command,
        prices=dict(cluster.price) if cluster else {}, watts=dict(cluster.watts) if cluster else {},
    )  # fmt: skip
    kept = FinishedRuns(Path(folder), whole, seed, options) if folder is not None else None
    warm = engine == "simulated"
    for number, case in enumerate(todo):
        outcome = kept.read(case) if kept else None
        if outcome is None:
            if not warm:
                _warm_up(task, case, workers, seed, options)
                warm = True
            given = {**options, "until": until, "seed": seed + case.repeat, "rate": case.rate, "command": command}
            given["traced"] = case.repeat == 0
            with shown(case, number, len(todo)) as watcher:
                outcome = _run(task, case, workers, {**given, "watcher": watcher})
            if outcome.result is not None and outcome.result.stopped == "interrupted":
                whole.interrupted = True
                break
            if kept:
                kept.write(case, outcome)
        whole.outcomes.append(outcome)
    return whole


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


def _warm_up(task: Task | str, case: Case, workers: int, seed: int, options: dict[str, Any]) -> None:
    short = {name: value for name, value in options.items() if name not in ("epochs", "steps")}
    _run(task, case, workers, {**short, "seed": seed, "steps": WARM})


class FinishedRuns:
    """The finished runs of a comparison, one file each."""

    def __init__(self, folder: Path, whole: Comparison, seed: int, options: dict[str, Any]) -> None:
        self.folder = folder
        budget = {name: options.get(name) for name in ("epochs", "steps", "servers", "threads", "link_rate")}
        mine = {name: getattr(whole, name) for name in ("task", "workers", "engine", "until")} | {"seed": seed}
        mine |= {name: value for name, value in budget.items() if value is not None}
        if options.get("scores", 1) > 1:
            mine["scores"] = options["scores"]
        if options.get("cluster"):
            mine["cluster"] = repr(options["cluster"])
        folder.mkdir(parents=True, exist_ok=True)
        place = folder / "comparison.json"
        if place.exists():
            theirs = json.loads(place.read_text())
            for name in sorted({*mine, *theirs}):
                if mine.get(name) != theirs.get(name):
                    raise PlanError(
                        f"{folder} holds a comparison with {name} {theirs.get(name)!r}, this one has "
                        f"{mine.get(name)!r}: choose another folder, or ask for the same"
                    )
        else:
            place.write_text(json.dumps(mine, indent=1) + "\n")

    def read(self, case: Case) -> ComparedRun | None:
        """A run that was finished before; one that failed is tried again."""
        place = self._place(case)
        if not place.exists():
            return None
        outcome = _outcomes.read(place.read_bytes(), place)
        same = (outcome.spec, outcome.rate, outcome.repeat) == (case.spec, case.rate, case.repeat)
        return outcome if same and outcome.result is not None else None

    def write(self, case: Case, outcome: ComparedRun) -> None:
        place = self._place(case)
        partial = place.with_suffix(".partial")
        partial.write_bytes(msgspec.json.encode(outcome))
        partial.rename(place)

    def _place(self, case: Case) -> Path:
        """A name that a person can read, and the digest of what it cannot hold, such as the path of a file."""
        name = re.sub(r"[^a-z0-9=.+_-]+", "_", case.spec).strip("_")[:READABLE]
        digest = hashlib.sha256(case.spec.encode()).hexdigest()[:16]
        return self.folder / f"{name}-{digest}@{case.rate!r}#{case.repeat}.json"
