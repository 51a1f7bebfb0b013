"""What was asked, checked: a request holds everything parsed, and nothing has started yet."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from covey import catalog
from covey.checkpoint import CheckpointDirectory
from covey.data.group_batches import GroupBatches
from covey.data.partitions import RowInfo
from covey.data.shards import Shards
from covey.engines import machine
from covey.errors import PlanError, UnknownMetric
from covey.model import build
from covey.names import option
from covey.observe.facts import RunFacts, RunOrigin
from covey.observe.membership import MembershipEvent
from covey.observe.progress import Row
from covey.observe.referee import Referee
from covey.observe.scoring_steps import ScoringSteps
from covey.run import checks
from covey.run.best_model import preference
from covey.run.leading.lead import Lead
from covey.run.option_parts import BudgetOptions
from covey.run.options import Options
from covey.run.saving import check_save
from covey.scoring import target_of
from covey.servers.preparing import with_preparers
from covey.simulate import parse_rate
from covey.spec import Spec
from covey.spec.worker_range import WorkerRange, parse_workers
from covey.strategy import Plan, Strategy
from covey.strategy.roles import shown_by_any
from covey.target import Target
from covey.task import Task, load_task
from covey.task.adjusted import at_rate, with_number
from covey.task.schedule import COUNTED

EPOCHS = 10  # by default how long
PATIENCE = 100  # epochs after which a run that does not reach its target ends


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """A run that was found possible: everything is parsed and checked, and nothing has started."""

    task: Task
    name: str  # "file.py:task", or "" for a task built in this process
    spec: Spec  # of the strategy; with the cut that was decided, if its model is cut
    strategy: Strategy
    plan: Plan
    deal: Shards
    servers: int
    budget: int | None
    target: Target | None
    options: Options
    rows: RowInfo | None = None  # of the workers, where each has its own
    callbacks: Sequence[Any] = ()  # of the task, which roles do not need
    scored: Callable[[Row, dict[str, float]], None] | None = None  # is told of each score
    kept: Callable[[Path], None] | None = None  # is told of each checkpoint
    lead: Lead | None = None  # of a launcher that has stood by
    pause: int | None = None  # samples at which the run is kept, and ends for now
    own_settings: bool = False  # of the task's optimizer, not those of the checkpoint
    morphed: bool = False  # it goes on from a checkpoint of another layout with the same batch of all replicas
    begins: float = 0.0  # virtual seconds before which it does not go on
    auto: bool = False  # the run finds out itself how many workers are worth it
    origin: RunOrigin | None = None  # for the lineage of what comes of it
    left: Callable[[MembershipEvent], None] | None = None  # is told of each process that is lost, while the run goes on

    @property
    def traced(self) -> bool:
        """Whether the result has a recording."""
        return self.options.output.traced or self.options.processes.profiled

    @property
    def threads(self) -> int:
        return self.options.processes.threads or machine.threads_each(len(self.plan.limits))


def request(
    task: Task | str, strategy: str | Any, many: int | str, given: Options, rows: RowInfo | None = None
) -> Request:
    """Check everything that can be checked before a process starts; `rows` replace the task's own data."""
    team = parse_workers(many)
    workers, given = team.most, implied(given, team)
    spec = catalog.chosen(strategy, workers)
    chosen = catalog.resolve(spec, workers)
    check_save(given.output.save)
    if rows and chosen.terms.chooses:
        raise PlanError(
            f"{chosen.name} says itself which samples a gradient is of, so every worker needs them all; with rows that "
            "stay where they are, use a strategy that leaves the batches to the worker, such as bsp or sparknet"
        )
    name = task if isinstance(task, str) else ""
    say = given.output.watcher.say if given.output.watcher else None
    task = load_task(task, say) if isinstance(task, str) else task
    task = with_number(task, given.data.preparers)
    _check_mesh(chosen, task, given, rows)
    target = target_of(task, given.budget.until) if given.budget.until else None
    task = build.with_rows(task, rows) if rows else task
    if target and task.evaluate is None and target.metric != "loss":
        raise UnknownMetric(
            f"{option('until', target)}: the task has no evaluate=…, so only the training loss can be a target"
        )
    preference(task, given.budget)
    checks.check_place(task, chosen, given)
    if chosen.terms.accept:
        chosen.terms.accept(build.optimizer(task))
    callbacks = task.callbacks
    task = replace(at_rate(task, given.training.rate), callbacks=())
    stretch = given.virtual.timing_only and (given.budget.steps is not None or _endless(chosen))
    replicas, steps = chosen.replicas(workers), given.budget.steps
    taken = None if steps is None else steps * replicas * task.step_size
    deal = build.shards(task, replicas, given.training.seed, rows, stretch=stretch, taken=taken)
    checks.check_stream(chosen, deal)
    checks.check_range(chosen, deal, team, given)
    spec, chosen = _cut(spec, chosen, task, workers, deal, given)
    checks.check_replicas(chosen, team, given)
    least = checks.least_workers(chosen, team, given)
    roles = shown_by_any(chosen.layout(workers, given.training.servers, given.copies.replicas), least)
    roles = with_preparers(roles, task.preparers, least > 0)
    limits = budgets(deal, given.budget)
    if not given.virtual.timing_only:
        build.check_batches(task, deal, limits, chosen.terms.parts)
    allowance = parse_rate(given.training.link_rate) if given.training.link_rate else None
    group = workers // deal.workers
    shared = GroupBatches(deal, chosen.composition.mesh.batches if chosen.composition.mesh else 1)
    limits = tuple(max(limits[other] for other in shared.ranks(rank // shared.members)) for rank in range(len(limits)))
    each = tuple(limit for limit in limits for _ in range(group))
    elastic = checks.check_continue(task, chosen, roles, team, given)
    plan = Plan(
        roles=tuple(roles), limits=each, lockstep=chosen.lockstep, allowance=allowance, elastic=elastic,
        seed=given.training.seed, least=least, replicas=given.copies.replicas,
    )  # fmt: skip
    servers = sum(role.address.role == "server" for role in roles)
    if task.clip_norm is not None:
        chosen.check_clip(servers)
    total = sum(shared.total(rank, limit) for rank, limit in enumerate(limits))
    checks.check_schedule(task, chosen, given, deal, total)
    return Request(
        task=task, name=name, spec=spec, strategy=chosen, plan=plan, deal=deal, servers=servers, budget=total,
        target=target, options=given, rows=rows, callbacks=callbacks, auto=team.auto,
    )  # fmt: skip


def implied(given: Options, workers: WorkerRange) -> Options:
    """The options of a run; one with a range of workers, or with copies of servers, goes on when it loses some."""
    if not workers.least and given.copies.replicas == 1:
        return given
    if given.checkpoints.on_failure == "restart" and workers.least:
        raise PlanError(
            f"{option('workers', workers)} goes on without a lost worker, and {option('on_failure', 'restart')} starts "
            f"all of them again: omit it, or use a number, as {option('workers', workers.most)}"
        )
    if given.checkpoints.on_failure == "restart":
        raise PlanError(
            f"{option('replicas', given.copies.replicas)} goes on with the copies of a lost server, and "
            f"{option('on_failure', 'restart')} starts all roles again: omit either"
        )
    checkpoints = replace(given.checkpoints, on_failure="continue")
    checkpoints.check()
    return replace(given, checkpoints=checkpoints)


def _check_mesh(chosen: Strategy, task: Task, given: Options, rows: RowInfo | None) -> None:
    """Refuse what a cut model cannot have."""
    if chosen.composition.mesh and rows:
        raise PlanError("rows stay where they are, and a mesh divides the task's own data: use covey.fit")
    if chosen.composition.mesh and chosen.composition.mesh.cut_in_layers and task.accumulate > 1:
        raise PlanError(
            f"Task(accumulate={task.accumulate}) and a mesh: a cut model computes a batch in micro-batches anyway; use "
            f"batch_size={task.step_size} and mesh(microbatches={task.accumulate})"
        )


def _endless(chosen: Strategy) -> bool:
    """Whether its model is a pipeline that never flushes, so that batches of different steps are under way at once."""
    mesh = chosen.composition.mesh
    return mesh is not None and not mesh.flushes


def _cut(spec: Spec, chosen: Strategy, task: Task, workers: int, deal: Shards, given: Options) -> tuple[Spec, Strategy]:
    """The strategy with its model's cut decided, if it is cut: by measuring, in virtual time by counting."""
    if (mesh := chosen.composition.mesh) is None or not (mesh.cut_in_layers or mesh.tensors > 1):
        return spec, chosen
    from covey.run.cutting import settled  # tracing models takes long to import

    simulated = given.engine == "simulated"
    bandwidth = given.virtual.cluster.link.bandwidth if simulated and given.virtual.cluster else math.inf
    resume = given.checkpoints.resume
    before = CheckpointDirectory(Path(resume)).newest()[1].strategy if resume else ""
    return settled(spec, chosen, task, workers, deal, counted=simulated, bandwidth=bandwidth, before=before)


def budgets(deal: Shards, given: BudgetOptions) -> tuple[int, ...]:
    """Each worker's own number of steps."""
    if given.steps is not None:
        return (given.steps,) * deal.workers
    epochs = given.epochs or (PATIENCE if given.until else EPOCHS)
    return tuple(epochs * deal.steps(rank) for rank in range(deal.workers))


def referee(asked: Request, skipped: Sequence[int] = ()) -> Referee:
    """Score once per pass over the data, of all workers together, or as often as was asked for.

    `skipped` are the steps of each worker that were done with other workers.
    """
    budget = asked.options.budget
    every = -(-asked.deal.samples // (budget.scores or 1))
    if budget.score_steps:
        every = budget.score_steps * asked.deal.workers * asked.deal.batch_size
    found = Referee(
        min(every, asked.budget or every), asked.target, total=asked.budget, confirm=budget.confirm,
        steps=_scoring_steps(asked, skipped),
    )  # fmt: skip
    found.interval, found.prefers, found.pause = budget.score_seconds, preference(asked.task, budget), asked.pause
    found.follows = asked.task.schedule_by if asked.task.schedule_by not in COUNTED else ""
    if asked.scored:
        found.told = asked.scored
    return found


def _scoring_steps(asked: Request, skipped: Sequence[int]) -> ScoringSteps | None:
    """After which steps the model is scored; None where workers do not take equal steps together.

    Where a strategy says itself which samples a gradient is of, a worker's steps are not those of the run. Where a lost
    worker gets the model from the others, these must not pause until it is back.
    """
    budget, limits = asked.options.budget, [limit for limit in asked.plan.limits if limit is not None]
    together = asked.strategy.in_step and not asked.strategy.terms.chooses and not asked.plan.least
    together = together and not (asked.plan.elastic and any(role.together for role in asked.plan.roles))
    if not together or not budget.scores or budget.score_seconds or not limits or len(set(skipped)) > 1:
        return None
    before = skipped[0] if skipped else 0
    return ScoringSteps(
        each_pass=max(asked.deal.steps(rank) for rank in range(asked.deal.workers)), samples=asked.deal.samples,
        scores=budget.scores, every=budget.score_steps, total=max(limits) - before, skipped=before,
    )  # fmt: skip


def facts(asked: Request, engine: str) -> RunFacts:
    """What is known of a run of a task before it starts."""
    threads = 1 if engine == "simulated" else asked.threads
    known = facts_of(
        asked.strategy, asked.options, asked.name or "a task of this process", engine, asked.plan.limits, threads
    )
    known.servers = asked.servers
    known.settings |= _settings(asked)
    return known


def _settings(asked: Request) -> dict[str, Any]:
    """What was asked for that is not usual, and the size of a batch."""
    task, budget = asked.task, asked.options.budget
    unusual = {
        "accumulate": task.accumulate if task.accumulate > 1 else None,
        "precision": task.precision if task.precision != "fp32" else None,
        "compile": task.compile or None,
        "device": task.device,
        "ema": task.ema,
        "preparers": task.preparers or None,
        "schedule_by": task.schedule_by if task.scheduler is not None else None,
        "until": str(asked.target) if asked.target else None,
        "confirm": budget.confirm if asked.target and budget.confirm > 1 else None,
        "score_every": budget.score_every,
        "best": budget.best,
        "patience": budget.patience,
        "link_rate": asked.options.training.link_rate or None,
        "replicas": asked.plan.replicas if asked.plan.replicas > 1 else None,
    }
    return {"batch_size": task.batch_size, **{name: value for name, value in unusual.items() if value is not None}}


def facts_of(
    strategy: Strategy, given: Options, name: str, engine: str, limits: Sequence[int | None], threads: int
) -> RunFacts:
    """What is known of any run before it starts."""
    return RunFacts(
        task=name,
        strategy=strategy.text,
        taxonomy={key: getattr(strategy.taxonomy, key) for key in strategy.taxonomy.__slots__},
        engine=engine,
        workers=len(limits),
        servers=strategy.servers.count if given.training.servers is None else given.training.servers,
        threads=threads,
        seed=given.training.seed,
        command=given.output.command,
        settings={**strategy.settings, "steps": list(limits)},
        machine=machine.describe(),
        versions=machine.versions(),
    )
