"""Search for several tasks that share the slots: ease.ml decides whose model is trained next."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

import msgspec

from covey.engines.interrupt import Interrupt, interruptible
from covey.errors import PlanError
from covey.names import option
from covey.policy.easeml import EaseMl
from covey.target import Better
from covey.tune.opened_study import opened, result_of
from covey.tune.outcomes import StudyResult, TrialRow
from covey.tune.policies import tenants_policy
from covey.tune.running import LOOK, End, RunningStudy
from covey.tune.storage import imported_optuna
from covey.tune.study_request import StudyRequest, request
from covey.tune.studying import conclude, pool_of
from covey.tune.tenants.candidates import candidates
from covey.tune.tenants.model_choice import ModelChoice, TenantTrials

SCHEMA = "covey.tenants/1"
USUAL: Mapping[str, Any] = {
    "epochs": 10, "slots": None, "within": None, "until": None, "metric": None, "strategy": "bsp", "workers": 1,
    "engine": "simulated", "sampler": "random", "fuse": "auto", "seed": 0,
}  # fmt: skip


class TenantsResult(msgspec.Struct, kw_only=True):
    """A search for several tasks: a study of each, and the order in which their trials were begun."""

    schema: str = SCHEMA
    policy: str
    metric: str
    better: Better
    command: str = ""  # that was typed
    tenants: list[StudyResult] = []
    order: list[tuple[int, int]] = []  # (task, trial)
    samples: int = 0
    seconds: float = 0.0
    stopped: End = "trials"
    verdict: str = ""

    def to_json(self) -> str:
        return msgspec.json.format(msgspec.json.encode(self), indent=1).decode() + "\n"


def tune_tenants(
    tasks: Sequence[str], space: str, *, policy: str = "easeml", trials: int = 64,
    folder: str | os.PathLike[str] | None = None, command: str = "",
    runs: str | os.PathLike[str] | Literal[False] | None = None, told: Callable[[str], None] = lambda line: None,
    **asked: Any,
) -> TenantsResult:  # fmt: skip
    """Search one space for the best settings of each of several tasks.

    Args:
        tasks: The files of functions that return a Task, each of another tenant.
        space: What to choose from, for all of them.
        policy: "easeml", with settings.
        trials: The number of trials of all tasks together.
        folder: Keep the studies in this folder, and go on with those that are there.
        command: The command line to write into the result.
        runs: Record each study in a new folder in this one; False: no record.
        told: Is told how each trial went.
        asked: Other arguments of `tune`, for all tasks; not `save`.

    >>> from covey.tune import tune_tenants
    >>> tasks = ["examples/tune.py", "examples/tune.py:few"]
    >>> found = tune_tenants(tasks, "width=16|64", epochs=2, slots=1, runs=False)
    >>> [len(study.trials) for study in found.tenants]
    [2, 2]
    """
    began = time.monotonic()
    imported_optuna()
    settings, given = tenants_policy(policy), _checked(tasks, asked)
    with ExitStack() as stack:
        pools = [stack.enter_context(pool_of(given["engine"])) for _ in tasks]
        requests = [request(task, space, policy="random", trials=trials, **given) for task in tasks]
        _check_metrics(tasks, requests)
        points = candidates(requests[0].space, requests[0].limits.trials, given["seed"])
        studies = []
        for number, (one, pool) in enumerate(zip(requests, pools, strict=True), start=1):
            kept = None if folder is None else Path(folder) / f"{number:02}"
            study = opened(
                one, result_of(one, space, policy, command), pool, folder=kept, runs=runs,
                told=_told_of(one.task, told), beside=tasks,
            )  # fmt: skip
            studies.append(stack.enter_context(study))
        search = SharedSearch(studies, points, settings, trials)
        whole = TenantsResult(policy=policy, metric=requests[0].metric, better=requests[0].better, command=command)
        whole.stopped = search.run()
        whole.order, whole.seconds = search.order, time.monotonic() - began
        _conclude(whole, studies)
    return whole


class SharedSearch:
    """Several studies whose trials run on the same slots."""

    def __init__(
        self, studies: Sequence[RunningStudy], points: Sequence[dict[str, Any]], settings: EaseMl, trials: int
    ) -> None:
        self.studies, self.trials = studies, trials
        self.asked: StudyRequest = studies[0].asked
        self.order: list[tuple[int, int]] = []
        self.interrupt, self.began = Interrupt(), time.monotonic()
        tenants = []
        for study in studies:
            begun = [row.point for row in study.rows if row.point not in points]
            tenants.append(TenantTrials(study.asked.space, [*points, *begun]))
        self.choice = ModelChoice(tenants, settings)

    def run(self) -> End:
        """Search until nothing is left to try; Ctrl-C, SIGTERM and SIGHUP end it with what was found."""
        with interruptible(self.interrupt):
            self._resume()
            while not (end := self._over()):
                self._fill()
                if not (busy := [number for number, study in enumerate(self.studies) if study.busy]):
                    return "trials"
                for number in busy:
                    for outcome in self.studies[number].pool.finished(LOOK / len(busy)):
                        self._ended(number, self.studies[number].take(outcome))
            return end

    def _resume(self) -> None:
        """What was trained before is known, and what was under way starts again."""
        for number, study in enumerate(self.studies):
            for row in study.rows:
                self.order.append((number, row.number))
                self.choice.decisions += 1
                if row.status == "running":
                    self.choice.tenants[number].running.add(self._candidate(number, row))
                else:
                    self._ended(number, row)
            study.resume()

    def _over(self) -> End | None:
        if self.interrupt.asked:
            return "interrupted"
        if self.asked.within is not None and time.monotonic() - self.began > self.asked.within:
            return "time"
        return "target" if not any(one.open for one in self.choice.tenants) else None

    def _fill(self) -> None:
        while (
            sum(len(study.busy) for study in self.studies) < self.asked.limits.slots
            and len(self.order) < self.trials
            and (found := self.choice.next()) is not None
        ):
            number, model = found
            row = self.studies[number].begin(self.choice.tenants[number].points[model])
            self.order.append((number, row.number))

    def _ended(self, number: int, row: TrialRow) -> None:
        study = self.studies[number]
        self.choice.ended(number, self._candidate(number, row), row.best(study.whole.better), row.seconds)
        self.choice.tenants[number].open = not study.reached

    def _candidate(self, number: int, row: TrialRow) -> int:
        return self.choice.tenants[number].points.index(row.point)


def _checked(tasks: Sequence[str], asked: dict[str, Any]) -> dict[str, Any]:
    """What was asked for, with what is usual; refused where several tasks cannot have it."""
    if unknown := asked.keys() - USUAL.keys():
        raise TypeError(f"tune_tenants has no {', '.join(sorted(unknown))}")
    given = {**USUAL, **asked}
    for name, needed, why in (
        ("fuse", ("auto", "never"), "easeml begins one trial at a time, so none are fused"),
        ("sampler", ("random",), "easeml chooses among points that are drawn at random"),
    ):
        if given[name] not in needed:
            raise PlanError(f"{option(name, given[name])}: {why}: omit it")
    if len(tasks) < 2:
        raise PlanError("easeml shares the slots among several tasks: name two files or more, or another policy")
    twice = next((task for task in tasks if tasks.count(task) > 1), None)
    if twice is not None:
        raise PlanError(f"{twice} is there twice: each task has a study of its own")
    return {**given, "fuse": "never"}


def _check_metrics(tasks: Sequence[str], requests: Sequence[StudyRequest]) -> None:
    first = requests[0]
    for task, other in zip(tasks, requests, strict=True):
        if (other.metric, other.better) != (first.metric, first.better):
            raise PlanError(
                f"{task} is scored by {other.metric}, and {tasks[0]} by {first.metric}: gains are compared, so all "
                "tasks need one metric, with one direction"
            )


def _told_of(task: str, told: Callable[[str], None]) -> Callable[[str], None]:
    return lambda line: told(f"{task} {line}")


def _conclude(whole: TenantsResult, studies: Sequence[RunningStudy]) -> None:
    whole.tenants = [study.whole for study in studies]
    for one in whole.tenants:
        one.stopped, one.seconds = whole.stopped, whole.seconds
        conclude(one)
    whole.samples = sum(one.samples for one in whole.tenants)
    scored = sum(one.best is not None for one in whole.tenants)
    whole.verdict = f"{len(whole.order)} trials of {len(whole.tenants)} tasks; with a best model: {scored}"
