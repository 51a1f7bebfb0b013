"""Search: ask the policy what to train next, train it, and tell the study; until all is tried, or time is over."""

from __future__ import annotations

import os
import shlex
import shutil
import time
from collections.abc import Callable
from typing import Literal

from covey.tune.opened_study import opened, result_of
from covey.tune.outcomes import StudyResult, best_of
from covey.tune.segment import MODEL, told_epochs
from covey.tune.storage import imported_optuna
from covey.tune.study_request import Fuse, Sampler, request
from covey.tune.trial_pool import ForkedTrials, ThreadedTrials, TrialPool


def tune(
    task: str, space: str, *, policy: str = "asha", trials: int = 64, epochs: int = 10, slots: int | None = None,
    within: str | None = None, until: str | None = None, metric: str | None = None, strategy: str = "bsp",
    workers: int = 1, engine: str = "simulated", sampler: Sampler = "random", fuse: Fuse = "auto", seed: int = 0,
    folder: str | os.PathLike[str] | None = None, save: str | os.PathLike[str] | None = None, command: str = "",
    runs: str | os.PathLike[str] | Literal[False] | None = None, told: Callable[[str], None] = lambda line: None,
) -> StudyResult:  # fmt: skip
    """Search a space for the settings with the best score.

    Args:
        task: The file of a function that returns a Task, `def task(rate=0.1): …`: "train.py" or "train.py:name".
        space: What to choose from (docs/tune.md): arguments of the function, `strategy` and `codec`.
        policy: Which trials go on: "asha", "random", "hyperband", "pop", "tupaq" or "pbt", with settings.
        trials: The number of points to try.
        epochs: The number of passes over the data that a trial has at most.
        slots: The number of trials at a time; by default that of the cores.
        within: End the search after this time, such as "10m".
        until: End the search when a trial reaches a target, such as "accuracy>=0.97".
        metric: What trials are compared by; by default the task's only metric.
        strategy: The strategy of all trials, where the space has none.
        workers: The number of workers of each trial.
        engine: "simulated": a process for each trial, in virtual time; or "local".
        sampler: How Optuna suggests points: "random" or "tpe".
        fuse: Whether trials of equal shapes are trained in one pass: "auto", "always" or "never".
        seed: The seed of points and of all trials.
        folder: Keep the study in this folder, and go on with the one that is there.
        save: Write the best model to this safetensors file.
        command: The command line to write into the result.
        runs: Record the search in a new folder in this one; by default in "runs", or in COVEY_RUNS. False: no record.
        told: Is told how each trial went.

    >>> from covey.tune import tune
    >>> found = tune("examples/tune.py", "rate=log(0.001, 1)", trials=4, epochs=4, slots=1, runs=False)
    >>> len(found.trials), found.trials[found.best].status
    (4, 'finished')
    """
    began = time.monotonic()
    imported_optuna()
    with pool_of(engine) as pool:  # it imports torch meanwhile
        asked = request(
            task, space, policy=policy, trials=trials, epochs=epochs, slots=slots, within=within, until=until,
            metric=metric, strategy=strategy, workers=workers, engine=engine, sampler=sampler, fuse=fuse, seed=seed,
        )  # fmt: skip
        whole = result_of(asked, space, policy, command)
        with opened(asked, whole, pool, folder=folder, runs=runs, told=told) as study:
            whole.stopped = study.run()
            whole.seconds = time.monotonic() - began
            conclude(whole)
            if save is not None and whole.best is not None:
                shutil.copyfile(study.store.folder(whole.best) / MODEL, save)
    return whole


def conclude(whole: StudyResult) -> None:
    """Name the best, and the command that trains it."""
    best = best_of(whole.trials, whole.better)
    whole.samples = sum(row.samples for row in whole.trials)
    if best is None:
        failed = next((row.why for row in whole.trials if row.why), "")
        whole.verdict = f"No trial was scored{f': {failed}' if failed else ''}"
        return
    whole.best = best.number
    score = best.curve[-1][1]
    whole.verdict = (
        f"Trial {best.number} is the best of {len(whole.trials)}: {whole.metric} {score:.4g} after "
        f"{told_epochs(best.reached)}"
    )
    whole.train = shlex.join([
        "covey", "run", best.task, "--strategy", best.strategy, "--workers", str(whole.workers), "--epochs",
        str(whole.epochs), *(["--seed", str(whole.seed)] if whole.seed else []),
    ])  # fmt: skip


def pool_of(engine: str) -> TrialPool:
    return ForkedTrials() if engine == "simulated" else ThreadedTrials()
