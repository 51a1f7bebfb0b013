"""A search that was found possible: everything is parsed and checked, and nothing has started."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from covey.engines import machine
from covey.errors import PlanError
from covey.model import build
from covey.names import option
from covey.policy.pbt import Pbt
from covey.policy.pop import Pop
from covey.policy.search import SearchLimits, SearchPolicy
from covey.scoring import eval_mode, target_of
from covey.simulate import parse_duration
from covey.target import Better, Target, direction
from covey.task import Task, load_task
from covey.task.file import task_parameters
from covey.tune.policies import policy_of
from covey.tune.space import Space
from covey.tune.space_check import check_space
from covey.tune.space_reader import parse_space

LOSS = "loss"  # of training: what is compared where a task has no metric
ENGINES = ("simulated", "local")
Sampler = Literal["random", "tpe"]
Fuse = Literal["auto", "always", "never"]


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyRequest:
    """A search that was found possible; nothing has started."""

    task: str
    space: Space
    policy: SearchPolicy
    limits: SearchLimits
    strategy: str
    workers: int
    engine: str
    metric: str
    better: Better
    sampler: Sampler
    fuse: Fuse
    within: float | None
    target: Target | None


def request(task: str, space: str, **given: Any) -> StudyRequest:
    """Check everything that can be checked before a trial starts."""
    found = parse_space(space)
    limits = SearchLimits(
        epochs=given["epochs"], trials=given["trials"], slots=given["slots"] or machine.cores(),
        seed=given["seed"],
    )  # fmt: skip
    for name in ("epochs", "trials", "slots"):
        if getattr(limits, name) < 1:
            raise PlanError(f"{option(name, getattr(limits, name))}: at least 1 is needed")
    policy, engine = policy_of(given["policy"]), given["engine"]
    if engine not in ENGINES:
        raise PlanError(f"{option('engine', engine)}: trials run in virtual time (simulated) or on processes (local)")
    within = parse_duration(given["within"]) if given["within"] else None
    if within is not None and within <= 0:
        raise PlanError(f"{option('within', given['within'])}: a search takes time; write for example 10m")
    check_space(found, task_parameters(task), task, given["workers"], given["strategy"])
    if found.size < limits.trials:
        limits = SearchLimits(epochs=limits.epochs, trials=int(found.size), slots=limits.slots, seed=limits.seed)
    if isinstance(policy, Pbt):
        _check_population(policy, found, limits)
    sample = load_task(task)
    metric, better = metric_of(sample, given["metric"])
    if isinstance(policy, Pop) and policy.target is not None and better == "lower":
        policy = replace(policy, target=-policy.target)  # as scores are turned
    target = target_of(sample, given["until"]) if given["until"] else None
    if target and target.metric != metric:
        raise PlanError(f"{option('until', given['until'])}: the search compares trials by {metric}; name that metric")
    return StudyRequest(
        task=task, space=found, policy=policy, limits=limits, strategy=given["strategy"], workers=given["workers"],
        engine=engine, metric=metric, better=better, sampler=given["sampler"], fuse=given["fuse"], within=within,
        target=target,
    )  # fmt: skip


def _check_population(policy: Pbt, space: Space, limits: SearchLimits) -> None:
    """Refuse what population based training could only train to the end, as random search does."""
    if not any(True for _ in space.free_ranges()):
        raise PlanError(
            "pbt changes arguments of the task with a range of uniform or log, and the space has none: write one, such "
            "as rate=log(1e-4, 1), or use another policy"
        )
    if limits.trials <= policy.population:
        raise PlanError(
            f"pbt(population={policy.population}) begins with {policy.population} trials, and copies are further ones, "
            f"but there are at most {limits.trials}: ask for more trials, or for fewer in the population"
        )


def metric_of(task: Task, wanted: str | None) -> tuple[str, Better]:
    """By which metric trials are compared (the wanted one, or the only one that is known), and which way is better."""
    if task.evaluate is None and wanted not in (None, LOSS):
        raise PlanError(f"{option('metric', wanted)}: the task has no evaluate=…, so only the training loss is known")
    known = [LOSS] if task.evaluate is None or wanted == LOSS else _metrics(task, wanted)
    metric = wanted or (known[0] if len(known) == 1 else "")
    if not metric:
        there = f"There are: {', '.join(known)}. " if known else ""
        raise PlanError(
            f"by which metric are trials compared? {there}Say it with {option('metric', known[0] if known else 'NAME')}"
        )
    if known and metric not in known:
        raise PlanError(
            f"{option('metric', metric)}: the task has no such metric; there are: {', '.join([*known, LOSS])}"
        )
    way = direction(metric, task.better)
    if way is None:
        raise PlanError(
            f"{option('metric', metric)}: is more of it better, or less? Declare it in the task: "
            f"Task(…, better={{{metric!r}: 'higher'}}), or 'lower'"
        )
    return metric, way


def _metrics(task: Task, wanted: str | None) -> list[str]:
    """The task's own metrics; where it does not declare the wanted one, those that a model before training has."""
    declared = [*getattr(task.evaluate, "ranges", {})]
    if wanted in declared or (wanted is None and len(declared) == 1):
        return declared
    assert task.evaluate is not None
    try:
        with torch.random.fork_rng(devices=[]):
            model = build.model(task, 0)
            with eval_mode(model):
                return sorted(task.evaluate(model))
    except Exception:  # of the user's code, with the usual arguments: trials have others, and tell what goes wrong
        return sorted({*task.better}) if wanted is None else []
