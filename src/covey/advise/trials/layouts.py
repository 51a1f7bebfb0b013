"""Which layout of a task's model is fastest on some machines? Found by cost, and the best judged in virtual time."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial

import torch

import covey
from covey.advise.ranked import Advice, AdvisedLayout
from covey.advise.situation import Situation
from covey.data.feed import Feed
from covey.data.shards import Shards
from covey.errors import CoveyError, PlanError
from covey.model import build
from covey.parallelism.ends import inputs_of, loss_of
from covey.parallelism.plan.measure import optimizer_state
from covey.parallelism.plan.profile import Profile
from covey.parallelism.plan.schedule import Schedule
from covey.parallelism.search import METHODS, Budget, Devices, LayoutSearch, ModelLayout, OperatorGraph, operators_of
from covey.parallelism.search.operators import OperatorConfig
from covey.run.cutting import profiled
from covey.run.options import options
from covey.run.request import request
from covey.simulate import Cluster, Link, Seconds
from covey.simulate.units import format_bytes, format_room
from covey.task import Task
from covey.task.data import check_data

ADVISED, JUDGED = 3, 5
"""Of the layouts that a run can do, how many are advised, and how many are run in virtual time."""

STEPS = 2  # of such a run
REASONS = 3  # that are told where no layout runs
MICROBATCHES = 4


@dataclass(frozen=True, kw_only=True)
class LayoutTerms:
    """What is asked of a search for layouts."""

    machines: int
    cluster: Cluster | None = None  # None: links of 1 Gbit/s, and the times of this machine
    own_pace: bool = False  # a batch takes what it takes on this machine, whatever the cluster says
    memory: float = math.inf  # bytes of each machine
    method: str = "dp"
    seconds: float = 60.0
    counted: bool = False  # instead of measured: the same on every machine
    seed: int = 0

    def check(self) -> None:
        if self.machines < 2:
            raise PlanError(f"--machines {self.machines}: one machine has one layout; use 2 or more")
        if self.method not in (*METHODS, "all"):
            raise PlanError(f"--method {self.method}: there are {', '.join(METHODS)}, and all")
        if not self.seconds > 0:
            raise PlanError(f"--seconds {self.seconds:g}: a search takes some time; use more than 0")
        if self.cluster:
            self.cluster.check(self.machines)
        if self.cluster and self.cluster.backend:
            raise PlanError("[backend] and a model that is divided: what reading takes is not known: omit [backend]")


@dataclass(frozen=True, kw_only=True)
class LayoutAnswer:
    """The layouts that were found: data parallelism first, then the fastest ones."""

    layouts: tuple[ModelLayout, ...]
    graph: OperatorGraph
    devices: Devices
    terms: LayoutTerms

    @property
    def best(self) -> ModelLayout | None:
        """The fastest that a run can do and that fits; of those that were tried in virtual time, if any was."""
        able = [one for one in self.layouts if one.runs and self.fits(one)]
        return min(able, key=lambda one: one.order, default=None)

    def fits(self, layout: ModelLayout) -> bool:
        return layout.memory <= self.devices.memory

    def facts(self) -> list[dict[str, object]]:
        return [{**asdict(one), "splits": dict(one.splits), "pace": one.pace, "runs": one.runs} for one in self.layouts]


def search_layouts(
    task: Task, terms: LayoutTerms, told: Callable[[str], None] = lambda line: None
) -> LayoutAnswer:  # fmt: skip
    """Measure the operators of the task's model, search, and try the best in virtual time."""
    terms.check()
    begun = time.monotonic()
    told("counting operators" if terms.counted else "measuring operators on this machine")
    graph, profile = captured(task, terms)
    graph, profile, devices, world = _scaled(graph, profile, terms)
    search = LayoutSearch(graph, devices, profile, MICROBATCHES)
    told(f"searching: {len(graph)} operators, {len(graph.groups)} choices, {terms.method}")
    budget = Budget(seconds=terms.seconds / 2, seed=terms.seed)
    found = search.all(terms.method, budget)
    found = _judged(task, [_asked(task, one) for one in found], world, terms, begun, told)
    noted = replace(graph, notes=(*graph.notes, *search.notes))
    answer = LayoutAnswer(layouts=tuple(found), graph=noted, devices=devices, terms=terms)
    if answer.best is None:
        raise PlanError(_none_fits(task, search, found, terms, budget))
    return answer


def add_layouts(
    advice: Advice, task: Task, name: str, now: Situation, seed: int, told: Callable[[str], None],
    memory: float | None = None,
) -> None:  # fmt: skip
    """Add the fastest layouts in which the model is divided, and say how they compare with whole models.

    `memory` is that of a worker, where it was said; else those of one machine share its memory.
    """
    if advice.workers < 2:
        advice.findings.append("One worker has nothing to divide a model among: use --workers 2 or more.")
        return
    if memory is None:
        memory = now.memory / now.workers if now.one_machine else now.memory
    terms = LayoutTerms(machines=advice.workers, cluster=now.cluster, memory=memory, seed=seed)
    try:
        answer = search_layouts(task, terms, told)
    except KeyboardInterrupt:
        advice.interrupted = True
        return
    except CoveyError as error:
        advice.findings.append(f"The model cannot be divided: {error}.")
        return
    _add_found(advice, answer, name)


def _add_found(advice: Advice, answer: LayoutAnswer, name: str) -> None:
    whole = answer.layouts[0]
    divided = [one for one in answer.layouts[1:] if one.runs and " with mesh(" in one.strategy]
    advice.layouts = [
        AdvisedLayout(
            plan=one.plan, command=command_of(one, name), step=one.judged or one.step, samples=one.samples,
            memory=one.memory, relative=one.pace / whole.pace,
        )
        for one in divided[:ADVISED]
    ]  # fmt: skip
    if not advice.layouts:
        advice.findings.append("No layout in which the model is divided can run.")
        return
    if not answer.fits(whole):
        advice.findings.insert(
            0, f"A worker has {format_bytes(answer.devices.memory)}, and with whole models it needs "
            f"{format_room(whole.memory)} for a batch: only layouts in which the model is divided fit."
        )  # fmt: skip
    best = advice.layouts[0]
    times = f"{max(best.relative, 1 / best.relative):.2f} times {'slower' if best.relative > 1 else 'faster'}"
    advice.findings.append(
        f"Of layouts in which the model is divided, {best.plan} is fastest: {times} "
        f"than whole models, with {format_bytes(best.memory)} instead of {format_bytes(whole.memory)} "
        "on the fullest machine."
    )


def command_of(layout: ModelLayout, task: str) -> str:
    """What to type."""
    return f"covey run {shlex.quote(task)} --strategy {shlex.quote(layout.strategy)} --workers {layout.workers}"


def captured(task: Task, terms: LayoutTerms) -> tuple[OperatorGraph, Profile | None]:
    """The operators of a model on one worker's batch, and its layers on a micro-batch, if it has several."""
    data, repeat = build.data_of(task), 0 if terms.counted else 3
    samples = min(task.batch_size, check_data(data))
    alone = Shards(check_data(data), 1, samples, terms.seed)
    batch = Feed(data, alone, 0, task.loading, device=build.device(task, 0)).take(torch.arange(samples))
    state = optimizer_state(task.optimizer, build.model(task, terms.seed))
    model = build.model(task, terms.seed)
    members = tuple(count for count in range(2, terms.machines + 1) if terms.machines % count == 0)
    graph = operators_of(
        model, inputs_of(task, model, batch), partial(loss_of, task, batch), repeat=repeat, members=members, state=state
    )
    try:
        schedule = Schedule(name="1f1b", microbatches=MICROBATCHES)
        return graph, profiled(task, schedule, repeat=repeat, seed=terms.seed)[1]
    except PlanError:
        return graph, None


def _scaled(
    graph: OperatorGraph, profile: Profile | None, terms: LayoutTerms
) -> tuple[OperatorGraph, Profile | None, Devices, Cluster]:
    """With the times of the cluster, where it says what a batch takes."""
    alone = sum(sum(operator.seconds(OperatorConfig())) for operator in graph.operators)
    world = terms.cluster or Cluster(link=Link())
    if terms.cluster is None or terms.own_pace:
        world = replace(world, compute=Seconds(alone))
    factor = world.compute / alone if alone else 1.0
    operators = tuple(
        replace(one, times={key: (factor * a, factor * b) for key, (a, b) in one.times.items()})
        for one in graph.operators
    )
    if profile is not None:
        pace = world.compute / (MICROBATCHES * profile.compute(0, len(profile) - 1) or 1.0)
        profile = replace(profile, layers=tuple(
            replace(layer, forward=pace * layer.forward, backward=pace * layer.backward) for layer in profile.layers
        ))  # fmt: skip
    slow = [world.slowdowns.get(rank, 1.0) for rank in range(terms.machines)] if world.slowdowns else []
    links = [world.link_of(f"worker {rank}") for rank in range(terms.machines)]
    link = world.local if len(world.machines) == 1 and world.local else min(links, key=lambda one: one.goodput)
    devices = Devices(
        count=terms.machines, bandwidth=link.goodput, latency=link.latency, slow=tuple(slow), memory=terms.memory
    )
    return replace(graph, operators=operators), profile, devices, world


def _asked(task: Task, layout: ModelLayout) -> ModelLayout:
    """Whether a run of this task would be refused, and why."""
    if not layout.runs:
        return layout
    try:
        plain = replace(task, compile=False)  # which virtual time refuses, and real runs of some layouts
        asked = request(plain, layout.strategy, layout.workers, options({"engine": "simulated", "steps": STEPS}))
        first, real = asked.plan.roles[0], replace(asked.task, compile=task.compile)
        build.replica(real, first.address, first.trains, asked.deal, asked.budget, first.part)
    except CoveyError as error:
        return replace(layout, why_not=str(error).rpartition("^ ")[2])
    return layout


def _judged(
    task: Task, found: Sequence[ModelLayout], world: Cluster, terms: LayoutTerms, begun: float,
    told: Callable[[str], None],
) -> list[ModelLayout]:  # fmt: skip
    """The best that a run can do, by their role programs in virtual time, while there is time for it.

    Data parallelism, which others are compared with, and the fastest other one are always tried.
    """
    able = sorted((one for one in found[1:] if one.runs), key=lambda one: one.pace)[:JUDGED]
    seconds: dict[str, float] = {}
    refused: dict[str, str] = {}
    for number, layout in enumerate([*(one for one in found[:1] if one.runs), *able]):
        if number > 1 and time.monotonic() - begun > terms.seconds:
            break
        told(f"trying {layout.strategy} in virtual time")
        try:
            result = covey.fit(
                replace(task, evaluate=None, callbacks=(), compile=False), layout.strategy, layout.workers,
                engine="simulated", cluster=_smaller(world, layout.workers), steps=STEPS, runs=False,
                timing_only=" with mesh(" in layout.strategy,
            )  # fmt: skip
        except CoveyError as error:
            refused[layout.plan] = str(error)
            continue
        if result.stopped == "interrupted":
            raise KeyboardInterrupt
        seconds[layout.plan] = result.seconds / STEPS
    first, *rest = [
        replace(one, judged=seconds.get(one.plan), why_not=refused.get(one.plan, one.why_not)) for one in found
    ]
    return [first, *sorted(rest, key=lambda one: one.order)]


def _smaller(world: Cluster, workers: int) -> Cluster:
    """The cluster as one with only the first of its workers has it, none of which dies."""
    slow = {rank: factor for rank, factor in world.slowdowns.items() if rank < workers}
    links = {host: link for host, link in world.links.items() if host in {f"worker {rank}" for rank in range(workers)}}
    return replace(world, slowdowns=slow, links=links, kills={}, workers=None)  # a step is timed, not a failure


def _none_fits(
    task: Task, search: LayoutSearch, tried: Sequence[ModelLayout], terms: LayoutTerms, budget: Budget
) -> str:  # fmt: skip
    """Why no layout runs; or by how much the smallest one that does misses the limit, and what would fit."""
    refused = {one.plan: one.why_not for one in tried if one.strategy and one.why_not}
    rest = [one for one in search.smallest().all("dp", budget) if one.strategy and one.plan not in refused]
    asked = [_asked(task, one) for one in rest]
    refused.update({one.plan: one.why_not for one in asked if one.why_not})
    able = [one for one in asked if one.runs]
    if not able or terms.memory == math.inf:
        reasons = dict.fromkeys(refused.values())
        return f"no layout of {terms.machines} machines can run this task: {'; '.join(list(reasons)[:REASONS])}"
    least = min(able, key=lambda one: one.memory)
    more = least.memory - terms.memory
    message = (
        f"no layout of {terms.machines} machines fits in {format_bytes(terms.memory)}: the smallest that was found, "
        f"{least.plan}, "
        f"needs {format_room(least.memory)}, {format_bytes(more)} too much"
    )
    for machines in (2 * terms.machines, 4 * terms.machines, 8 * terms.machines):
        larger = LayoutSearch(search.graph, replace(search.devices, count=machines, slow=()))
        fits = [one for one in larger.sharded() if one.runs and one.memory <= terms.memory]
        if fits and _asked(task, fits[-1]).runs:
            return f"{message}; {machines} machines would do, as {fits[-1].plan}"
    return f"{message}; use more memory, or a smaller batch_size"
