"""Engines that start roles on the hosts of a cluster: each is a module of `engines/`, imported when it is asked for."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any, NamedTuple

from covey import catalog
from covey.engines import handover, launch_environment
from covey.engines.cluster.cluster_processes import ClusterProcesses
from covey.engines.cluster.places import MeetingTerms, Places
from covey.errors import PlanError
from covey.observe.result import Result
from covey.run.options import Options
from covey.run.processes import on_processes
from covey.run.request import Request, at_rate
from covey.simulate import parse_duration
from covey.task import Task


class EngineEntry(NamedTuple):
    """Where an engine's code is, and what must be installed for it."""

    module: str
    needs: str = ""  # a package
    extra: str = ""  # of covey's, which brings it


CLUSTERS: Mapping[str, EngineEntry] = {
    "torchrun": EngineEntry("covey.engines.torchrun"),
    "mpi": EngineEntry("covey.engines.mpi", needs="mpi4py", extra="mpi"),
    "ray": EngineEntry("covey.engines.ray", needs="ray", extra="ray"),
    "spark": EngineEntry("covey.engines.spark", needs="pyspark", extra="spark"),
    "lab": EngineEntry("covey.engines.lab"),
}
"""Each module has `places(workers, hosts, **settings)`, which checks the settings and opens nothing yet, and, where
processes of the engine run the same command as the launcher, `guest(handed)`, whether this is one of them that only
hosts (`handed` gives a task of its own memory to its roles), and `refuse()`: they need not wait for this launcher."""


INSECURE = (
    "--insecure: what roles say to each other is neither encrypted nor signed; whoever is on this network can read the "
    "model and the gradients, change them, or end the run"
)


def module(name: str) -> ModuleType:
    """The engine's code; without its extra, the command that installs it."""
    engine = CLUSTERS[name]
    if engine.needs and find_spec(engine.needs) is None:
        raise PlanError(f"--engine {name} needs {engine.needs}: pip install 'covey[{engine.extra}]'")
    return import_module(engine.module)


def cluster(asked: Request, name: str, settings: Mapping[str, Any]) -> Result:
    """Roles on the hosts of a cluster."""
    return at(asked, module(name).places(len(asked.plan.limits), asked.options.hosts, **settings))


def at(asked: Request, places: Places) -> Result:
    """Roles at the places of an engine."""
    given = asked.options
    task = os.path.abspath(asked.name) if asked.name else ""
    terms = terms_of(given, asked.threads)

    def muster(asked: Request, warm: str, handed: bytes) -> ClusterProcesses:
        return ClusterProcesses(places, terms, warm, task, handed, asked.plan.roles)

    return on_processes(asked, given.engine, muster)


def terms_of(given: Options, threads: int) -> MeetingTerms:
    """How the hosts of a run meet, as it was asked for; what is insecure is said."""
    terms = MeetingTerms(
        place=given.place, interface=given.interface, insecure=given.insecure, threads=threads,
        stall=parse_duration(given.stall),
    )  # fmt: skip
    if given.watcher and given.insecure:
        given.watcher.say(INSECURE)
    return replace(terms, say=given.watcher.say) if given.watcher else terms


def host_only(name: str, task: Task | str, strategy: str | Any, workers: int, rate: float = 1.0) -> bool:
    """If this process only hosts roles, because another one leads the run: host them, until the run is over."""
    guest = getattr(module(name), "guest", None)

    def handed() -> bytes:
        spec = catalog.chosen(strategy, workers)
        mine = None if isinstance(task, str) else at_rate(task, rate)
        return handover.pack(mine, spec if spec.from_outside else None)

    return guest is not None and guest(handed)


def refuse_ranks(name: str, instead: str = "") -> None:
    """Refuse a run on this machine in each of several ranks: they would train unrelated models."""
    found = launch_environment.world()
    if name == "local" and found and found[1].size > 1:
        raise PlanError(
            f"this is rank {found[1].rank} of {found[1].size} of {found[0]}, and each rank would start a run of its "
            f"own: add --engine {found[0]}{instead}"
        )


@contextmanager
def refusing(name: str) -> Iterator[None]:
    """If what is inside fails, the processes that wait for this launcher need not wait any longer."""
    try:
        yield
    except BaseException:
        if name in CLUSTERS:
            getattr(module(name), "refuse", lambda: None)()
        raise
