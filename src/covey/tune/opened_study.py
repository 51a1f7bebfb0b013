"""A study that can run: with its result, its record and its folder, which are written when it has ended."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal

from covey.engines import machine
from covey.names import task_file
from covey.observe.facts import RunFacts
from covey.run.record import folder_of_runs, recording
from covey.tune.outcomes import StudyResult, TrialRow
from covey.tune.running import RunningStudy
from covey.tune.storage import OptunaBook, StudyFolder
from covey.tune.study_request import StudyRequest
from covey.tune.trial_pool import TrialPool

Folder = str | os.PathLike[str] | None


def result_of(asked: StudyRequest, space: str, policy: str, command: str) -> StudyResult:
    """The result of a study that has not begun."""
    return StudyResult(
        task=asked.task, space=space, policy=policy, metric=asked.metric, better=asked.better, workers=asked.workers,
        engine=asked.engine, epochs=asked.limits.epochs, seed=asked.limits.seed, command=command,
    )  # fmt: skip


@contextmanager
def opened(
    asked: StudyRequest, whole: StudyResult, pool: TrialPool, *, folder: Folder, runs: Folder | Literal[False],
    told: Callable[[str], None], beside: Sequence[str] = (),
) -> Iterator[RunningStudy]:  # fmt: skip
    """A study in this folder, or in its record, or in a folder that goes; `beside`: all tasks that share its slots."""
    pool.prepare(asked.task)
    place, identity = folder_of_runs(runs), _identity(whole, asked)
    if beside:
        identity["tenants"] = list(beside)
    record = recording(place, _facts(whole, asked.strategy), asked.task, told, kind="study") if place else nullcontext()
    with record as recorded, tempfile.TemporaryDirectory(prefix="covey-study-") as scratch:
        kept = Path(folder) if folder is not None else recorded.path / "study" if recorded else Path(scratch)
        with StudyFolder(kept, identity, lambda row: _fit(row, asked)) as store:
            book = OptunaBook(store, asked)
            yield RunningStudy(asked, whole, store, book, pool, recorded, told)
        if recorded:
            recorded.keep(whole.to_json())
            recorded.journal.end("interrupted" if whole.stopped == "interrupted" else "searched")


def _fit(row: TrialRow, asked: StudyRequest) -> None:
    """Let a trial of a folder have the task and the strategy that its point has: a file of it may name others."""
    setup = asked.space.setup(row.point, asked.strategy)
    row.task, row.strategy = setup.task(asked.task), setup.strategy


def _facts(whole: StudyResult, strategy: str) -> RunFacts:
    """What a record says of a search before it starts."""
    return RunFacts(
        task=whole.task, strategy=strategy, taxonomy={}, engine=whole.engine, workers=whole.workers, seed=whole.seed,
        command=whole.command, settings={"space": whole.space, "policy": whole.policy, "metric": whole.metric},
        machine=machine.describe(), versions=machine.versions(),
    )  # fmt: skip


def _identity(whole: StudyResult, asked: StudyRequest) -> dict[str, Any]:
    """What makes a study another one."""
    names = ("task", "space", "policy", "metric", "better", "workers", "engine", "epochs", "seed")
    source = hashlib.sha256(task_file(whole.task).read_bytes()).hexdigest()
    return {name: getattr(whole, name) for name in names} | {"strategy": asked.strategy, "source": source}
