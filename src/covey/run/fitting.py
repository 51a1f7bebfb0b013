"""Train a task: check what was asked, and hand it to the engine of that name."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from covey.data.stripe_cache import read_counts
from covey.model.private.spent import accounted
from covey.names import option
from covey.observe.callbacks import Callback
from covey.observe.instruments import Instrument
from covey.observe.progress import Watcher
from covey.observe.result import Result
from covey.run import notebook
from covey.run.clusters import cluster as on_cluster
from covey.run.clusters import engine_of, host_only, refuse_ranks, refusing
from covey.run.leading.lead_options import LeadOptions
from covey.run.leading.standby import import_for_roles, stand_by
from covey.run.listening import listening
from covey.run.morphing.morphing_run import mesh_in_range, morphing
from covey.run.option_parts import (
    BudgetOptions,
    CheckpointOptions,
    CopyOptions,
    FaultOptions,
    OnFailure,
    OutputOptions,
    ProcessOptions,
    TrainingOptions,
    VirtualOptions,
)
from covey.run.options import DataOptions, NetworkOptions, Options
from covey.run.processes import local
from covey.run.registering.register_options import RegisterOptions
from covey.run.registering.registration import Registration, origin_of
from covey.run.request import PATIENCE, Request, facts, implied, request
from covey.run.simulated import simulated
from covey.simulate import Cluster
from covey.simulate.faults import FaultPlan
from covey.spec import parse_call
from covey.spec.worker_range import parse_workers
from covey.store.data_hash import data_hash
from covey.task import Task
from covey.task.arguments import checked
from covey.task.schedule import depends_on_length

RUNNERS: Mapping[str, Callable[[Request], Result]] = {"local": local, "simulated": simulated}


@checked("covey.fit")
def fit(
    task: Task | str,
    strategy: str | Any = "bsp",
    workers: int | str = 2,
    *,
    servers: int | None = None,
    replicas: int = 1,
    engine: str = "local",
    epochs: int | None = None,
    steps: int | None = None,
    until: str | None = None,
    scores: int = 1,
    score_every: str | None = None,
    confirm: int = 1,
    best: str | None = None,
    patience: int | None = None,
    seed: int = 0,
    rate: float = 1.0,
    preparers: int | None = None,
    threads: int | None = None,
    save: str | os.PathLike[str] | None = None,
    register: str | None = None,
    store: str | os.PathLike[str] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    every: str = "60s",
    resume: str | os.PathLike[str] | None = None,
    on_failure: OnFailure = "stop",
    max_failures: int | None = None,
    keeper: str = "file",
    standby: bool = False,
    faults: FaultPlan | str | None = None,
    spot_trace: str | os.PathLike[str] | None = None,
    stall: str = "30s",
    hosts: str | os.PathLike[str] | None = None,
    place: str = "",
    interface: str = "",
    insecure: bool = False,
    cipher: str = "",
    link_rate: str | None = None,
    cluster: Cluster | None = None,
    timing_only: bool = False,
    traced: bool = False,
    profiled: bool = False,
    command: str = "",
    watcher: Watcher | None = None,
    callbacks: Sequence[Callback] = (),
    log: Sequence[str] = (),
    runs: str | os.PathLike[str] | Literal[False] | None = None,
    instruments: Sequence[Instrument] = (),
) -> Result:
    """Train a task with a strategy and return its result.

    An option that the engine does not read is refused. Where an engine starts this program on every host, all
    processes but one host roles inside this call, and end with `SystemExit` after the run.

    Args:
        task: A `covey.Task`, or the file of one: "train.py" or "train.py:name".
        strategy: A strategy with its settings and codecs, such as "ssp(bound=3) + int8", or an object of your own with
            a method `strategy(workers)` that gives a `covey.Strategy`.
        workers: The number of workers, a range in which they come and go, such as "2:8", or "auto:8": as many
            of 8 as are worth it (docs/elastic.md).
        servers: The number of servers, for strategies that have servers.
        replicas: The number of copies of what each server holds, 2 or 3, so that a lost server ends no run
            (docs/elastic.md).
        engine: "local", "simulated", "torchrun", "mpi", "ray", "spark", "lab(hosts=…)", or one of your own.
        epochs: End each worker after this number of passes over its shard.
        steps: End each worker after this number of steps; in place of `epochs`.
        until: End the run when a metric reaches a target, such as "accuracy>=0.95"; without `epochs` or `steps` it
            ends after 100 passes at the latest, and schedules are spread over these.
        scores: How many times to score the model per pass over the data; 0 for never, where only its time counts.
        score_every: Score after this number of steps of each worker, such as "100 steps", or this time of training,
            such as "30s"; in place of `scores`.
        confirm: How many scores in a row must meet the target of `until`. With more than 1, `reached` in the result is
            the moment between two scores at which the metric crossed it.
        best: Keep the model with the best score of this metric, in `result.best_weights` and in the folder of
            checkpoints. Task(better=…) says which is better, where the name does not.
        patience: End the run after this number of scores in a row that are not better than the best.
        seed: The seed of weights, sample orders and all other random numbers.
        rate: A factor on the learning rate of the task.
        preparers: The number of roles that transform samples for the workers, in place of the task's own number.
        threads: The number of torch threads per worker.
        save: Write the scored model to this safetensors file.
        register: Keep the model, or with `best` the best one, as the next version of this name (docs/store.md).
        store: The folder of such versions; by default COVEY_STORE, or "model_store" beside the folder of `runs`.
        checkpoint: Save the whole run in this folder at intervals.
        every: The interval between checkpoints, such as "10m"; "auto" keeps their cost below 3.5 % of the time.
        resume: Continue from the newest checkpoint in this folder.
        on_failure: "stop" ends a run that loses a process; "restart" starts it again from its newest checkpoint;
            "continue" replaces a lost worker while the others go on, and with `checkpoint` starts again where that
            is not possible.
        max_failures: The number of failures in a row that such a run survives without a new checkpoint (5), or a new
            step of that worker (2).
        keeper: Where launchers agree who has the run: "file", in the folder of checkpoints, or
            "etcd:HOST:PORT/NAME" (docs/checkpoints.md).
        standby: Wait while another launcher has the run, take over when it dies, and end with `SystemExit` when it
            has finished the run.
        faults: What is to go wrong, such as "kill worker 1@5s" (docs/faults.md); on "local" and "simulated".
        spot_trace: A file that says when machines of workers arrive and depart (docs/elastic.md); needs a range.
        stall: Report who waits for whom after this time, and end the run if a process is unresponsive.
        hosts: A file of hosts, for engines that take one.
        place: Where roles live, such as "servers:node0,workers:rest".
        interface: The network interface between hosts, such as "eth1".
        insecure: Neither encrypt nor authenticate links between hosts.
        cipher: "aes-256-gcm" encrypts tensors between hosts faster than the default does (docs/clusters.md).
        link_rate: The most that a link between two roles carries, such as "50mbit".
        cluster: The simulated cluster (`covey.simulate.from_flags`); only in virtual time.
        timing_only: Simulate time and traffic without training; only in virtual time.
        traced: Record what each role does, in `result.recording`.
        profiled: Record also what torch does in each role, for the first steps; on real processes.
        command: The command line to write into the result.
        watcher: An object that is shown the run's progress; in a notebook it is shown below the cell without one.
        callbacks: Objects of subclasses of `covey.Callback`, which hear of the run.
        log: Loggers, such as "csv:scores.csv" or "tensorboard:logs".
        runs: Record the run in a new folder in this one; by default in "runs", or in COVEY_RUNS. False: no record.
        instruments: Observers of events in virtual time.

    >>> result = covey.fit("examples/digits.py", "ssp(bound=2)", workers=4, engine="simulated", until="accuracy>=0.8")
    >>> result.stopped
    'target'
    """
    given = Options(
        engine=engine,
        training=TrainingOptions(servers=servers, seed=seed, rate=rate, link_rate=link_rate),
        copies=CopyOptions(replicas=replicas),
        budget=BudgetOptions(
            epochs=epochs, steps=steps, until=until, scores=scores, score_every=score_every, confirm=confirm, best=best,
            patience=patience,
        ),
        processes=ProcessOptions(threads=threads, stall=stall, profiled=profiled),
        network=NetworkOptions(hosts=hosts, place=place, interface=interface, insecure=insecure, cipher=cipher),
        virtual=VirtualOptions(cluster=cluster, timing_only=timing_only, instruments=instruments),
        checkpoints=CheckpointOptions(
            checkpoint=checkpoint, every=every, resume=resume, on_failure=on_failure, max_failures=max_failures
        ),
        data=DataOptions(preparers=preparers),
        models=RegisterOptions(register=register, store=store),
        lead=LeadOptions(keeper=keeper, standby=standby),
        fault_plan=FaultOptions(faults=faults, spot_trace=spot_trace),
        output=OutputOptions(
            save=save, traced=traced, command=command, watcher=watcher, callbacks=callbacks, log=log, runs=runs
        ),
    )
    name = strategy if isinstance(strategy, str) else type(strategy).__name__
    with notebook.shown(watcher, f"{name} · {workers} worker{'' if workers in (1, '1') else 's'} · {engine}") as shown:
        return fit_with(task, strategy, workers, replace(given, output=replace(given.output, watcher=shown)))


def fit_with(task: Task | str, strategy: str | Any, workers: int | str, given: Options) -> Result:
    """The same, with the options in one."""
    read_counts.notes()  # what was read before this run is not its own
    team = parse_workers(workers)
    if mesh_in_range(strategy, team):
        asked, train = morphing(task, strategy, team, given)
        return heard(asked, given.engine, train)
    given = implied(given, team)
    engine = engine_of(given, team)
    if engine is None:
        name = parse_call(given.engine).name
        if name == "local":
            refuse_ranks()
        asked = request(task, strategy, workers, given)
        if not given.lead.standby:
            return heard(asked, name, RUNNERS[name])
        lead, given = stand_by(given, partial(import_for_roles, asked))
        with closing(lead):
            if asked.strategy.composition.mesh:  # the checkpoint decides where its model is cut
                asked = request(task, strategy, workers, given)
            return heard(replace(asked, options=given, lead=lead), name, RUNNERS[name])
    if host_only(engine, task, strategy, team.most, given.training.rate, given.data.preparers):
        raise SystemExit(0)
    with refusing(engine):
        return heard(request(task, strategy, workers, given), given.engine, lambda asked: on_cluster(asked, engine))


def heard(asked: Request, engine: str, train: Callable[[Request], Result]) -> Result:
    """Train, while the record and the callbacks hear of it."""
    given = asked.options
    cluster = repr(given.virtual.cluster) if given.virtual.cluster else ""
    with listening(given, lambda: facts(asked, engine), asked.name, asked.callbacks, cluster) as listeners:
        record = listeners.record.path.name if listeners and listeners.record else ""
        origin = origin_of(given, asked.strategy.text, len(asked.plan.limits), engine, record)
        asked = replace(asked, origin=origin)
        registration = Registration.of(given, asked.name, partial(data_hash, asked.task), cluster=cluster)
        if listeners:
            kept, left = listeners.kept, listeners.left
            asked = replace(asked, options=listeners.heard(given), scored=listeners.scored, kept=kept, left=left)
        if note := length_note(asked.task, given):
            asked.options.output.say(note)
        result = _accounted(asked, train(asked))
        if registration:
            registration.register(result)
        if listeners:
            listeners.concluded(result)
        return result


def length_note(task: Task, given: Options) -> str:
    """What to say where rates follow from the length of a run, and nobody said how long it is; else nothing."""
    budget = given.budget
    if budget.epochs or budget.steps or not budget.until or given.virtual.timing_only:
        return ""
    if not depends_on_length(task.scheduler, task.rate):
        return ""
    said = f"the learning-rate schedule is spread over {PATIENCE} passes, as only {option('until', budget.until)}"
    return f"{said} ends this run: give {option('epochs')} too, and it is spread over that many"


def _accounted(asked: Request, result: Result) -> Result:
    """The result with what a private task has spent."""
    return result if asked.options.virtual.timing_only else accounted(asked.task, asked.deal, asked.plan.limits, result)
