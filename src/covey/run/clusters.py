"""Runs on the hosts of a cluster: which engine was asked for, with which settings, and what its sites must know."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from covey import catalog, registry
from covey.engines import handover, launch_environment
from covey.engines.cluster.cluster_processes import ClusterProcesses
from covey.engines.cluster.losses.elastic_cluster import ElasticCluster
from covey.engines.cluster.places import MeetingTerms, Places
from covey.engines.entries import ENGINES, HERE, Engine, names
from covey.engines.interrupt import JoinRequests
from covey.engines.signal_faults import SignalFaults
from covey.errors import PlanError
from covey.names import option
from covey.observe.result import Result
from covey.run.options import Options, check
from covey.run.processes import faults_of, on_processes
from covey.run.request import Request
from covey.simulate import parse_duration
from covey.spec import Call, SpecError, bind, parse_call, unknown
from covey.spec.worker_range import WorkerRange
from covey.task import Task
from covey.task.adjusted import at_rate, with_number

INSECURE = (
    "what roles say to each other is neither encrypted nor signed; whoever is on this network can read the "
    "model and the gradients, change them, or end the run"
)


def engine_of(given: Options, workers: WorkerRange | None = None) -> Engine | None:
    """The engine of a cluster that is asked for, if it reads all that was given; None for those of this machine."""
    call = parse_call(given.engine)
    engine = None
    if call.name not in HERE:
        engine = bind(call, _kind(call, given.engine), "engine", given.engine)
    elif call.settings:
        raise PlanError(f"the engine {call.name} has no settings: write {option('engine', call.name)}")
    check(given, call.name, engine, workers)
    return engine


def _kind(call: Call, text: str) -> type[Engine]:
    if call.name not in ENGINES:
        registry.search()
    if call.name not in ENGINES:
        if why := registry.why_unusable(call.name):
            raise SpecError(text, call.at, why)
        raise unknown(text, call.at, "engine", call.name, names())
    ENGINES[call.name].require(call.name)
    return ENGINES[call.name]


def places_of(engine: Engine, workers: int, given: Options) -> Places:
    """Where an engine has the sites of a run; nothing starts yet."""
    return engine.places(workers, Path(given.network.hosts) if given.network.hosts else None)


def cluster(asked: Request, engine: Engine) -> Result:
    """Roles on the hosts of a cluster."""
    return _at(asked, lambda: places_of(engine, len(asked.plan.limits), asked.options))


def at(asked: Request, places: Places) -> Result:
    """Roles at the places of an engine."""
    return _at(asked, lambda: places)


def _at(asked: Request, places: Callable[[], Places]) -> Result:
    given = asked.options
    task = os.path.abspath(asked.name) if asked.name else ""
    terms, faults = terms_of(given, asked.threads), faults_on_hosts(asked)

    def start_processes(asked: Request, warm: str, handed: bytes) -> ClusterProcesses:
        if not asked.plan.elastic:
            return ClusterProcesses(places(), terms, warm, task, handed, asked.plan.roles)
        joins = JoinRequests() if asked.plan.least else None
        return ElasticCluster(places(), terms, warm, task, handed, asked.plan.roles, joins, faults)

    result = on_processes(asked, given.engine, start_processes)
    result.failures += faults.unmet if faults else []
    return result


def faults_on_hosts(asked: Request) -> SignalFaults | None:
    """What is planned to go wrong on a cluster: refused where a run does not go on after a loss."""
    faults = faults_of(asked)
    if faults and not asked.plan.elastic:
        raise PlanError(
            f"{option('faults')}: on {asked.options.engine} faults are for runs that go on after them: add "
            f"{option('on_failure', 'continue')}, or use the engine local"
        )
    return faults


def terms_of(given: Options, threads: int) -> MeetingTerms:
    """How the hosts of a run meet, as it was asked for; what is insecure is said."""
    terms = MeetingTerms(
        place=given.network.place, interface=given.network.interface, insecure=given.network.insecure, threads=threads,
        cipher=given.network.cipher, stall=parse_duration(given.processes.stall),
    )  # fmt: skip
    if given.output.watcher and given.network.insecure:
        given.output.watcher.say(f"{option('insecure', True)}: {INSECURE}")
    return replace(terms, say=given.output.watcher.say) if given.output.watcher else terms


def host_only(
    engine: Engine, task: Task | str, strategy: str | Any, workers: int, rate: float = 1.0, preparers: int | None = None
) -> bool:
    """If another process leads the run: host the roles that it places here, until the run is over."""

    def handed() -> bytes:
        spec = catalog.chosen(strategy, workers)
        mine = None if isinstance(task, str) else with_number(at_rate(task, rate), preparers)
        return handover.pack(mine, spec if spec.from_outside else None)

    return engine.environment() is not None and engine.ranks().guest(handed)


def refuse_ranks(instead: str = "") -> None:
    """Refuse a run on this machine in each of several ranks: they would train unrelated models."""
    found = launch_environment.world()
    if found and found[1].size > 1:
        raise PlanError(
            f"this is rank {found[1].rank} of {found[1].size} of {found[0]}, and each rank would start a run of its "
            f"own: add {option('engine', found[0])}{instead}"
        )


@contextmanager
def refusing(engine: Engine) -> Iterator[None]:
    """If the run fails before it starts, processes that wait for this launcher need not wait any longer."""
    try:
        yield
    except BaseException:
        if engine.environment() is not None:
            engine.ranks().refuse()
        raise
