"""Train a task: check what was asked, and hand it to the engine of that name."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

from covey.errors import PlanError
from covey.observe.instruments import Instrument
from covey.observe.progress import Watcher
from covey.observe.result import Result
from covey.run.clusters import CLUSTERS, host_only, refuse_ranks, refusing
from covey.run.clusters import cluster as cluster_run
from covey.run.options import Options, check
from covey.run.processes import local
from covey.run.request import Request, request
from covey.run.simulated import simulated
from covey.simulate import Cluster
from covey.spec import Call, parse_call, unknown
from covey.task import Task

HERE: Mapping[str, Callable[[Request], Result]] = {"local": local, "simulated": simulated}
ENGINES = (*HERE, *CLUSTERS)


def fit(
    task: Task | str,
    strategy: str = "bsp",
    workers: int = 2,
    *,
    servers: int | None = None,
    engine: str = "local",
    epochs: int | None = None,
    steps: int | None = None,
    until: str | None = None,
    scores: int = 1,
    seed: int = 0,
    rate: float = 1.0,
    threads: int | None = None,
    save: str | os.PathLike[str] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    every: str = "60s",
    resume: str | os.PathLike[str] | None = None,
    stall: str = "30s",
    hosts: str | os.PathLike[str] | None = None,
    place: str = "",
    interface: str = "",
    insecure: bool = False,
    link_rate: str | None = None,
    cluster: Cluster | None = None,
    timing_only: bool = False,
    traced: bool = False,
    command: str = "",
    watcher: Watcher | None = None,
    instruments: Sequence[Instrument] = (),
) -> Result:
    """Train a task (or "file.py:name") with a strategy on so many workers.

    The keywords are the flags of `covey run` and `covey simulate`; one that the engine does not read is refused.
    `rate` is a factor on the task's learning rate, `cluster` the one that is imagined, `traced` keeps a recording of
    what each role did when, `watcher` is shown the run as it goes, `instruments` are told what happens in virtual time.

    Where an engine starts this very program on every host, all but one of the processes only host roles: they do so
    in here, and end with `SystemExit` when the run is over.
    """
    given = Options(
        servers=servers, engine=engine, epochs=epochs, steps=steps, until=until, scores=scores, seed=seed, rate=rate,
        threads=threads, save=save, checkpoint=checkpoint, every=every, resume=resume, stall=stall, hosts=hosts,
        place=place, interface=interface, insecure=insecure, link_rate=link_rate, cluster=cluster,
        timing_only=timing_only,
        traced=traced, command=command, watcher=watcher, instruments=instruments,
    )  # fmt: skip
    return fit_with(task, strategy, workers, given)


def fit_with(task: Task | str, strategy: str, workers: int, given: Options) -> Result:
    """The same, with the options in one."""
    engine = engine_of(given)
    if engine.name in HERE and engine.settings:
        raise PlanError(f"the engine {engine.name} has no settings: write --engine {engine.name}")
    refuse_ranks(engine.name)
    if engine.name in CLUSTERS and host_only(engine.name, task, given.rate):
        raise SystemExit(0)
    with refusing(engine.name):
        asked = request(task, strategy, workers, given)
    return HERE[engine.name](asked) if engine.name in HERE else cluster_run(asked, engine.name, engine.settings)


def engine_of(given: Options) -> Call:
    """The engine that is asked for, if there is one of that name and it reads all that was given."""
    engine = parse_call(given.engine)
    if engine.name not in ENGINES:
        raise unknown(given.engine, 0, "engine", engine.name, ENGINES)
    check(given, engine.name)
    return engine
