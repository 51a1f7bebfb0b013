"""The launcher of a script: `covey launch train.py` runs it on every role of a strategy."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Literal

import msgspec

from covey.checkpoint import CheckpointDirectory
from covey.engines import machine
from covey.engines.cluster.cluster_processes import ClusterProcesses
from covey.engines.cluster.losses.elastic_cluster import ElasticCluster
from covey.engines.entries import Engine
from covey.engines.interrupt import Interrupt, interruptible
from covey.engines.local import LocalProcesses
from covey.engines.process.contacts import Contacts
from covey.engines.process.launcher.empty_seats import Renewal
from covey.engines.process.launcher.run_wishes import RunWishes
from covey.engines.process.launcher.supervisor import Supervisor
from covey.errors import PlanError
from covey.membership import Deaths
from covey.model import scored
from covey.names import option
from covey.observe.callbacks import Callback
from covey.observe.facts import RunFacts
from covey.observe.membership import MembershipLog
from covey.observe.progress import Watcher
from covey.observe.referee import Referee
from covey.observe.result import Result, conclude
from covey.run.clusters import engine_of, host_only, places_of, refuse_ranks, refusing, terms_of
from covey.run.leading.lead import Lead
from covey.run.listening import listening
from covey.run.option_parts import (
    BudgetOptions,
    CheckpointOptions,
    OnFailure,
    OutputOptions,
    ProcessOptions,
    TrainingOptions,
    at_least_one,
    deaths_survived,
)
from covey.run.options import NetworkOptions, Options
from covey.run.own_loop import joined_role
from covey.run.own_loop.request import Loop, Script, loop_of
from covey.run.processes import StartableProcesses, checkpoints_of, kept_run
from covey.run.registering.register_options import RegisterOptions, check_store
from covey.run.registering.registration import Registration, origin_of
from covey.run.request import facts_of
from covey.run.restarting import Attempt, Restarts, interval
from covey.run.saving import check_save, save_model
from covey.simulate import parse_duration
from covey.spec import parse_call
from covey.task.arguments import checked

BEFORE = "importing torch, or in the script before covey.join"
ALIKE = "every role runs the script up to covey.join, and must draw the same weights: call torch.manual_seed first"


@checked("covey.run.launch")
def launch(
    script: str | os.PathLike[str],
    arguments: Sequence[str],
    strategy: str,
    workers: int,
    *,
    servers: int | None = None,
    engine: str = "local",
    steps: int | None = None,
    seed: int = 0,
    threads: int | None = None,
    save: str | os.PathLike[str] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    every: str = "60s",
    resume: str | os.PathLike[str] | None = None,
    on_failure: OnFailure = "stop",
    max_failures: int | None = None,
    stall: str = "30s",
    hosts: str | os.PathLike[str] | None = None,
    place: str = "",
    interface: str = "",
    insecure: bool = False,
    cipher: str = "",
    command: str = "",
    watcher: Watcher | None = None,
    callbacks: Sequence[Callback] = (),
    log: Sequence[str] = (),
    profiled: bool = False,
    runs: str | os.PathLike[str] | Literal[False] | None = None,
    register: str | None = None,
    store: str | os.PathLike[str] | None = None,
) -> Result:
    """Run a script on every role of a strategy; each calls `covey.join` where its training begins.

    The keywords are the flags of `covey launch`. Options that need a Task, such as a target, do not exist here.
    """
    asked = Options(
        engine=engine,
        training=TrainingOptions(servers=servers, seed=seed),
        budget=BudgetOptions(steps=steps),
        processes=ProcessOptions(threads=threads, stall=stall, profiled=profiled),
        network=NetworkOptions(hosts=hosts, place=place, interface=interface, insecure=insecure, cipher=cipher),
        checkpoints=CheckpointOptions(
            checkpoint=checkpoint, every=every, resume=resume, on_failure=on_failure, max_failures=max_failures
        ),
        output=OutputOptions(save=save, command=command, watcher=watcher, callbacks=callbacks, log=log, runs=runs),
        models=RegisterOptions(register=register, store=store),
    )
    return launch_with(script, arguments, strategy, workers, asked)


def launch_with(
    script: str | os.PathLike[str], arguments: Sequence[str], strategy: str, workers: int, asked: Options
) -> Result:
    """The same, with the options in one."""
    path = Path(script).resolve()
    at_least_one(workers=workers)
    if parse_call(asked.engine).name == "simulated":
        raise PlanError(
            f"{option('engine', 'simulated')}: a script's own loop takes real time; covey simulate FILE.py:task "
            f"runs a Task in virtual time, and {option('engine', 'local')} runs the script"
        )
    machine.check_processes()
    engine = engine_of(asked)
    if engine is None:
        refuse_ranks(", or start the script itself: its covey.join finds the other ranks")
    elif host_only(engine, str(path), strategy, workers):
        raise SystemExit(0)
    with refusing(engine) if engine else nullcontext():
        if not path.is_file():
            raise PlanError(f"there is no script {script}")
        check_save(asked.output.save)
        asked.models.check()
        check_store(asked.models, asked.output.runs)
        wanted = Script(path=str(path), name=str(script), arguments=tuple(arguments))
        loop = loop_of(wanted, strategy, workers, asked, asked.processes.threads or machine.threads_each(workers))
        return _heard(loop, lambda loop: lead(loop, lambda: _processes(engine, loop), Interrupt()))


def _heard(loop: Loop, train: Callable[[Loop], Result]) -> Result:
    """Train, while the record and the callbacks hear of it."""
    given = loop.options
    if scores := [text for text in given.output.log if text.partition(":")[0] == "csv"]:
        raise PlanError(
            f"{option('log', scores[0])} writes scores, which a script's own loop does not have; tensorboard:DIR, "
            "mlflow:URI, wandb and prometheus:PORT also report how far it is"
        )

    def known() -> RunFacts:
        return facts_of(loop.strategy, given, loop.script.name, given.engine, loop.plan.limits, loop.threads)

    with listening(given, known, loop.script.path) as listeners:
        record = listeners.record.path.name if listeners and listeners.record else ""
        origin = origin_of(given, loop.strategy.text, len(loop.plan.limits), given.engine, record)
        loop = replace(loop, origins=(origin,))
        registration = Registration.of(given, loop.script.path, lambda: ("", "what the script reads"), builds=False)
        if listeners:
            loop = replace(loop, options=listeners.heard(given), kept=listeners.kept, left=listeners.left)
        result = train(loop)
        if registration:
            registration.register(result)
        if listeners:
            listeners.concluded(result)
        return result


def _processes(engine: Engine | None, loop: Loop) -> StartableProcesses:
    if engine is None:
        return LocalProcesses(joined_role.__name__, loop.threads, parse_duration(loop.options.processes.stall))
    places = places_of(engine, len(loop.plan.limits), loop.options)
    terms = terms_of(loop.options, loop.threads)
    kind = ElasticCluster if loop.plan.elastic else ClusterProcesses
    return kind(places, terms, joined_role.__name__, loop.script.path, loop.handed, loop.plan.roles)


def lead(loop: Loop, start_processes: Callable[[], StartableProcesses], interrupt: Interrupt) -> Result:
    """Run the loop with the processes of an engine, until all have ended."""
    given = loop.options
    kept, run = kept_run(given.checkpoints, loop.run)
    loop = replace(loop, origins=(*run.origins, *loop.origins)) if run else loop
    checkpoints = checkpoints_of(given.checkpoints)
    first = Lead.of(given, checkpoints)
    restarts = Restarts(given, checkpoints, interrupt, len(loop.plan.limits), log=first.membership(loop.left))
    with first.told(loop.kept), interruptible(interrupt):
        result = restarts.run(
            Attempt(kept, run, log=restarts.failures.log),
            lambda attempt: _lead(loop, start_processes, checkpoints, interrupt, attempt),
        )
        result.keep_origins(list(loop.origins))
        return first.finish(result)


def _lead(
    loop: Loop, start_processes: Callable[[], StartableProcesses], checkpoints: CheckpointDirectory | None,
    interrupt: Interrupt, attempt: Attempt,
) -> Result:  # fmt: skip
    """One attempt, with new processes."""
    given, plan, judge = loop.options, loop.plan, Referee(sys.maxsize)

    def pack(contacts: Contacts) -> bytes:
        # one that is restarted takes what it must know from the others, who have come further than the checkpoint
        return msgspec.msgpack.encode(loop.work(contacts, None if contacts.incarnations else attempt.kept))

    with start_processes() as processes:
        board = processes.start(plan.roles, f"{joined_role.__name__}:enter", pack, loop.handed)
        file = processes.directory / "model.safetensors"
        wishes = RunWishes(
            score=False, before=BEFORE, model=file, checkpoints=checkpoints, alike=ALIKE,
            keep_every=interval(given.checkpoints), run=loop.run,
            stall=parse_duration(given.processes.stall), watcher=given.output.watcher, interrupt=interrupt,
            lost=attempt.lost, profiled=given.processes.profiled, renewal=_renewal(loop, processes, attempt.log),
        )  # fmt: skip
        supervisor = attempt.supervisor = Supervisor(plan, board, processes, judge, wishes)
        if attempt.run is not None:
            supervisor.resume(attempt.run)
        outcome = supervisor.run()
        known = facts_of(loop.strategy, given, loop.script.name, given.engine, plan.limits, loop.threads)
        result = conclude(
            known, judge, outcome.tallies,
            seconds=outcome.seconds, stopped=outcome.stopped, usage=outcome.usage, failures=outcome.refused,
            contention=outcome.contention,
        )  # fmt: skip
        result.keep_weights(scored.read(file))
        if given.processes.profiled:
            result.keep_recording(supervisor.recording(outcome, result.strategy, result.engine))
        unsaved = save_model(result, given.output.save)
        supervisor.see_off()
    if unsaved:
        raise unsaved
    return result


def _renewal(loop: Loop, processes: StartableProcesses, log: MembershipLog) -> Renewal | None:
    if not loop.plan.elastic:
        return None
    assert isinstance(processes, LocalProcesses | ElasticCluster), "other engines refuse to go on after a loss"
    deaths = Deaths(deaths_survived(loop.options.checkpoints))
    return Renewal(deaths, processes.renew, log, renewable=processes.renewable, patience=processes.patience)
