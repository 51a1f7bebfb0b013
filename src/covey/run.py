"""How does a plan meet an engine? `fit` trains a task; each role of a run enters here again in its own process."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import msgspec
import torch

from covey import build, catalog
from covey.checkpoint import RoleState, Run, Vault
from covey.data import Shards
from covey.engines import handover, machine
from covey.engines.interrupt import interruptible
from covey.engines.local import LocalCrew
from covey.engines.process.desk import Desk
from covey.engines.process.driver import SCORER
from covey.engines.process.role import Desks, Post, play
from covey.engines.process.scorer import Scorer
from covey.engines.process.supervisor import Supervisor, Wishes
from covey.engines.virtual import VirtualEngine
from covey.engines.virtual.watching import Watching
from covey.errors import CheckpointError, PlanError
from covey.message import Address
from covey.observe.instruments import Instrument
from covey.observe.progress import Watcher
from covey.observe.referee import Referee
from covey.observe.result import Facts, Result, conclude
from covey.simulate import Cluster, parse_duration
from covey.spec import parse_call, unknown
from covey.strategy import Plan, Strategy
from covey.target import Target, parse_target
from covey.task import Task, load_task

EPOCHS = 10  # when nobody says how long
PATIENCE = 100  # epochs after which a run that does not reach its target ends


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """What else a person may ask of a run."""

    servers: int | None = None
    engine: str = "local"
    epochs: int | None = None
    steps: int | None = None
    until: str | None = None
    seed: int = 0
    threads: int | None = None
    save: str | os.PathLike[str] | None = None
    checkpoint: str | os.PathLike[str] | None = None
    every: str = "60s"
    resume: str | os.PathLike[str] | None = None
    stall: str = "30s"
    cluster: Cluster | None = None
    timing_only: bool = False
    command: str = ""
    watcher: Watcher | None = None
    instruments: Sequence[Instrument] = ()

    def __post_init__(self) -> None:
        if self.epochs is not None and self.steps is not None:
            raise PlanError("give --epochs or --steps, not both: each says when a worker ends")
        for name in ("epochs", "steps", "threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise PlanError(f"--{name} {value}: at least 1 is needed")
        if self.timing_only and (self.until or self.save):
            raise PlanError("--timing-only trains nothing: use --steps or --epochs, without --until and --save")


def options(given: dict[str, Any]) -> Options:
    """The options by name; one that does not exist is told what does."""
    known = [field.name for field in fields(Options)]
    for name in given:
        if name not in known:
            raise PlanError(f"covey.fit has no option {name!r}; it has: {', '.join(known)}")
    return Options(**given)


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """A run that was found possible: everything is parsed and checked, and nothing has started."""

    task: Task
    name: str  # "file.py:task", or "" for a task built in this process
    strategy: Strategy
    plan: Plan
    deal: Shards
    servers: int
    budget: int | None
    target: Target | None
    options: Options

    @property
    def threads(self) -> int:
        cores = len(os.sched_getaffinity(0))
        return self.options.threads or max(1, cores // len(self.plan.limits))


def request(task: Task | str, strategy: str, workers: int, given: Options) -> Request:
    """Check everything that can be checked before a process starts."""
    chosen = catalog.resolve(strategy, workers)
    roles = chosen.layout(workers, given.servers)
    target = parse_target(given.until) if given.until else None
    name = task if isinstance(task, str) else ""
    task = load_task(task) if isinstance(task, str) else task
    if target and task.evaluate is None and target.metric != "loss":
        raise PlanError(f"--until {target}: the task has no evaluate=…, so only the training loss can be a target")
    deal = build.shards(task, workers, given.seed)
    limits = budgets(deal, given)
    plan = Plan(roles=tuple(roles), limits=limits, lockstep=chosen.lockstep, seed=given.seed)
    servers = sum(role.address.role == "server" for role in roles)
    total = sum(samples_of(deal, rank, limit) for rank, limit in enumerate(limits))
    return Request(
        task=task, name=name, strategy=chosen, plan=plan, deal=deal, servers=servers, budget=total, target=target,
        options=given,
    )  # fmt: skip


def budgets(deal: Shards, given: Options) -> tuple[int, ...]:
    """Each worker's own number of steps."""
    if given.steps is not None:
        return (given.steps,) * deal.workers
    epochs = given.epochs or (PATIENCE if given.until else EPOCHS)
    return tuple(epochs * deal.steps(rank) for rank in range(deal.workers))


def samples_of(deal: Shards, rank: int, steps: int) -> int:
    """How many samples a worker sees in so many steps."""
    whole, rest = divmod(steps, deal.steps(rank))
    return whole * deal.size(rank) + min(rest * deal.batch_size, deal.size(rank))


def fit(task: Task | str, strategy: str = "bsp", workers: int = 2, **given: Any) -> Result:
    """Train a task (or "file.py:name") with a strategy on so many workers; `Options` lists what else may be asked."""
    asked = request(task, strategy, workers, options(given))
    engine = parse_call(asked.options.engine)
    if engine.name not in ENGINES:
        raise unknown(asked.options.engine, 0, "engine", engine.name, ENGINES)
    if engine.settings:
        raise PlanError(f"the engine {engine.name} has no settings: write --engine {engine.name}")
    return ENGINES[engine.name](asked)


def facts(asked: Request, engine: str) -> Facts:
    """What is known of a run before it starts."""
    return Facts(
        task=asked.name or "a task of this process", strategy=asked.strategy.text,
        taxonomy={key: getattr(asked.strategy.taxonomy, key) for key in asked.strategy.taxonomy.__slots__},
        engine=engine, workers=len(asked.plan.limits), servers=asked.servers,
        threads=asked.threads if engine == "local" else 1, seed=asked.options.seed, command=asked.options.command,
        settings={**asked.strategy.settings, "batch_size": asked.task.batch_size, "steps": list(asked.plan.limits)},
        machine=machine.describe(), versions=machine.versions(),
    )  # fmt: skip


def referee(asked: Request) -> Referee:
    """Score once per pass over the data, of all workers together."""
    return Referee(min(asked.deal.samples, asked.budget or asked.deal.samples), asked.target)


# -- virtual time ------------------------------------------------------------------------------------------


def simulated(asked: Request) -> Result:
    """All roles in this process, on an agenda; seconds are virtual."""
    given = asked.options
    if given.checkpoint or given.resume:
        raise PlanError("a simulated run starts again in no time: --checkpoint and --resume are for real engines")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        score, replicas = _replicas(asked)
        judge = referee(asked)
        watching = [Watching(given.watcher, judge, asked.budget)] if given.watcher else []
        scoring = score.score if score and asked.task.evaluate else None
        engine = VirtualEngine(
            asked.plan, replicas, given.cluster or Cluster(), [*given.instruments, *watching], judge, scoring
        )
        outcome = engine.run()
        result = conclude(
            facts(asked, "simulated"), judge, outcome.tallies.values(), seconds=outcome.seconds, stopped=outcome.stopped
        )
        if score:
            score.assemble(outcome.snapshots)
            result.keep_weights(score.state())
            if given.save:
                score.write(os.fspath(given.save))
        return result
    finally:
        torch.set_num_threads(threads)


def _replicas(asked: Request) -> tuple[build.ScoredModel | None, dict[Address, Any]]:
    if asked.options.timing_only:
        size = build.numel(asked.task)
        return None, {
            role.address: build.stand_in(size, role.address, role.trains, asked.deal) for role in asked.plan.roles
        }
    score = build.ScoredModel(build.model(asked.task, asked.options.seed), asked.task.evaluate)
    return score, {
        role.address: build.replica(asked.task, role.address, role.trains, asked.deal, asked.budget)
        for role in asked.plan.roles
    }


# -- processes of this machine ------------------------------------------------------------------------------


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """What a role's process must know to become its role."""

    task: str
    pickled: bytes
    strategy: str
    workers: int
    servers: int | None
    limits: list[int | None]
    seed: int
    threads: int
    budget: int | None
    book: dict[str, str]
    launcher: str
    kept: str = ""

    def plan(self) -> Plan:
        chosen = catalog.resolve(self.strategy, self.workers)
        roles = tuple(chosen.layout(self.workers, self.servers))
        return Plan(roles=roles, limits=tuple(self.limits), lockstep=chosen.lockstep, seed=self.seed)

    def desks(self) -> Desks:
        return Desks({address(name): endpoint for name, endpoint in self.book.items()}, self.launcher)


def address(name: str) -> Address:
    role, _, rank = name.partition(" ")
    return Address(role, int(rank))


def local(asked: Request) -> Result:
    """Roles as processes of this machine."""
    given = asked.options
    kept, run = _kept(asked)
    judge = referee(asked)
    with LocalCrew() as crew, tempfile.TemporaryDirectory(prefix="covey-model-") as spare:
        desks = crew.desks([role.address for role in asked.plan.roles])
        board = crew.start(desks, "covey.run:enter", msgspec.msgpack.encode(_work(asked, desks, kept)))
        file = Path(spare) / "model.safetensors"
        wishes = Wishes(
            score=asked.task.evaluate is not None or asked.target is not None, model=file,
            vault=Vault(Path(given.checkpoint)) if given.checkpoint else None, keep_every=parse_duration(given.every),
            run=_run(asked), stall=parse_duration(given.stall), budget=asked.budget, watcher=given.watcher,
        )  # fmt: skip
        supervisor = Supervisor(asked.plan, board, crew, judge, wishes)
        if run is not None:
            supervisor.resume(run.progress)
        with interruptible(supervisor.interrupt):
            outcome = supervisor.run()
        result = conclude(
            facts(asked, "local"), judge, outcome.tallies, seconds=outcome.seconds, stopped=outcome.stopped
        )
        result.keep_weights(build.read(file))
        if given.save:
            build.copy(file, Path(given.save))
    return result


def _work(asked: Request, desks: Desks, kept: Path | None) -> Work:
    given = asked.options
    return Work(
        task=os.path.abspath(asked.name) if asked.name else "",
        pickled=b"" if asked.name else handover.pack(asked.task),
        strategy=asked.strategy.text, workers=len(asked.plan.limits), servers=given.servers,
        limits=list(asked.plan.limits), seed=given.seed, threads=asked.threads, budget=asked.budget,
        book={str(who): endpoint for who, endpoint in desks.book.items()}, launcher=desks.launcher,
        kept=str(kept or ""),
    )  # fmt: skip


def _run(asked: Request) -> Run:
    return Run(
        strategy=asked.strategy.text, workers=len(asked.plan.limits), servers=asked.servers, seed=asked.options.seed,
        samples=asked.deal.samples, batch_size=asked.task.batch_size, progress={},
    )  # fmt: skip


def _kept(asked: Request) -> tuple[Path | None, Run | None]:
    """The checkpoint to go on from, if it is one of this very run."""
    if asked.options.resume is None:
        return None, None
    place, run = Vault(Path(asked.options.resume)).newest()
    here = _run(asked)
    for name in ("strategy", "workers", "servers", "seed", "samples", "batch_size"):
        if getattr(run, name) != getattr(here, name):
            raise CheckpointError(
                f"{place} is of a run with {name} {getattr(run, name)!r}, this one has {getattr(here, name)!r}"
            )
    return place, run


def enter(data: bytes, me: Address) -> None:
    """A role's own process begins here."""
    work = msgspec.msgpack.decode(data, type=Work)
    torch.set_num_threads(work.threads)
    with Post(me, work.desks()) as post:
        task: Task = load_task(work.task) if work.task else handover.unpack(work.pickled)
        deal = build.shards(task, work.workers, work.seed)
        plan = work.plan()
        if me == SCORER:
            score_for(post, plan, build.ScoredModel(build.model(task, work.seed), task.evaluate))
        else:
            replica = build.replica(task, me, plan.role(me).trains, deal, work.budget)
            kept = RoleState.read(Path(work.kept), me) if work.kept else None
            play(post, plan, replica, kept, Desk.serve)


def score_for(post: Post, plan: Plan, scored: build.ScoredModel) -> None:
    """Be the scorer of a run."""
    links = post.open(plan.window)
    post.ready(scored.flat.params.numel)
    Scorer(links, post.line, scored.assemble, scored.evaluate, scored.write).run()


ENGINES: dict[str, Callable[[Request], Result]] = {"local": local, "simulated": simulated}
