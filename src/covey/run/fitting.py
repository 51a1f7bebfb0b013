"""Train a task: check what was asked, and hand it to the engine of that name."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

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
    strategy: str | Any = "bsp",
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
    """Train a task with a strategy and return its result.

    An option that the engine does not read is refused. Where an engine starts this program on every host, all
    processes but one host roles inside this call, and end with `SystemExit` after the run.

    Args:
        task: A `covey.Task`, or the file of one: "train.py" or "train.py:name".
        strategy: A strategy with its settings and codecs, such as "ssp(bound=3) + int8", or an object of your own with
            a method `strategy(workers)` that gives a `covey.Strategy`.
        workers: The number of workers.
        servers: The number of servers, for strategies that have servers.
        engine: "local", "simulated", "torchrun", "mpi", "ray", "spark" or "lab(hosts=…)".
        epochs: End each worker after this number of passes over its shard.
        steps: End each worker after this number of steps; in place of `epochs`.
        until: End the run when a metric reaches a target, such as "accuracy>=0.95".
        scores: How many times to score the model per pass over the data.
        seed: The seed of weights, sample orders and all other random numbers.
        rate: A factor on the learning rate of the task.
        threads: The number of torch threads per worker.
        save: Write the scored model to this safetensors file.
        checkpoint: Save the whole run in this folder at intervals.
        every: The interval between checkpoints, such as "10m".
        resume: Continue from the newest checkpoint in this folder.
        stall: Report who waits for whom after this time, and end the run if a process is unresponsive.
        hosts: A file of hosts, for engines that take one.
        place: Where roles live, such as "servers:node0,workers:rest".
        interface: The network interface between hosts, such as "eth1".
        insecure: Neither encrypt nor authenticate links between hosts.
        link_rate: The most that a link between two roles carries, such as "50mbit".
        cluster: The simulated cluster (`covey.simulate.from_flags`); only in virtual time.
        timing_only: Simulate time and traffic without training; only in virtual time.
        traced: Record what each role does, in `result.recording`.
        command: The command line to write into the result.
        watcher: An object that is shown the run's progress.
        instruments: Observers of events in virtual time.

    >>> result = covey.fit("examples/digits.py", "ssp(bound=2)", workers=4, engine="simulated", until="accuracy>=0.8")
    >>> result.stopped
    'target'
    """
    given = Options(
        servers=servers, engine=engine, epochs=epochs, steps=steps, until=until, scores=scores, seed=seed, rate=rate,
        threads=threads, save=save, checkpoint=checkpoint, every=every, resume=resume, stall=stall, hosts=hosts,
        place=place, interface=interface, insecure=insecure, link_rate=link_rate, cluster=cluster,
        timing_only=timing_only,
        traced=traced, command=command, watcher=watcher, instruments=instruments,
    )  # fmt: skip
    return fit_with(task, strategy, workers, given)


def fit_with(task: Task | str, strategy: str | Any, workers: int, given: Options) -> Result:
    """The same, with the options in one."""
    engine = engine_of(given)
    if engine.name in HERE and engine.settings:
        raise PlanError(f"the engine {engine.name} has no settings: write --engine {engine.name}")
    refuse_ranks(engine.name)
    if engine.name in CLUSTERS and host_only(engine.name, task, strategy, workers, given.rate):
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
