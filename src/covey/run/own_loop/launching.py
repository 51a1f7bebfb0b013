"""The launcher of a script: `covey launch train.py` runs it on every role of a strategy."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from covey import build, catalog
from covey.engines.interrupt import Interrupt, interruptible
from covey.engines.local import LocalCrew
from covey.engines.process.contacts import Contacts
from covey.engines.process.supervisor import Supervisor, Wishes
from covey.errors import PlanError
from covey.observe.referee import Referee
from covey.observe.result import Result, conclude
from covey.run.own_loop import seat
from covey.run.request import facts_of, options, threads_each
from covey.run.roles import Work
from covey.simulate import parse_duration
from covey.strategy import Plan

NOT_HERE = ("epochs", "until", "checkpoint", "resume", "cluster", "timing_only")


def launch(
    script: str | os.PathLike[str], arguments: Sequence[str], strategy: str, workers: int, **given: Any
) -> Result:
    """Run a script on every role of a strategy; each calls `covey.join` where its training begins."""
    asked = options(given)
    for name in NOT_HERE:
        if getattr(asked, name):
            raise PlanError(
                f"covey launch has no --{name.replace('_', '-')}: the script's own loop decides how long it runs"
            )
    if asked.engine != "local":
        raise PlanError(f"--engine {asked.engine}: a script of one's own runs on the engine 'local' only")
    path = Path(script).resolve()
    if not path.is_file():
        raise PlanError(f"there is no script {script}")
    chosen = catalog.resolve(strategy, workers)
    if chosen.mesh:
        raise PlanError("a script's own loop has the whole model: give covey run a Task, whose model covey can cut")
    if chosen.chooses:
        raise PlanError(
            f"{chosen.name} says itself which samples a gradient is of, and a script's own loop cannot: give covey run "
            "a Task, or launch the script with a strategy that leaves the batches to the loop, such as bsp or easgd"
        )
    roles = tuple(chosen.layout(workers, asked.servers))
    plan = Plan(roles=roles, limits=(asked.steps,) * workers, lockstep=chosen.lockstep, seed=asked.seed)
    judge = Referee(sys.maxsize)
    interrupt = Interrupt()
    threads = asked.threads or threads_each(workers)
    with interruptible(interrupt), LocalCrew(seat.__name__, threads) as crew:

        def pack(contacts: Contacts) -> bytes:
            return msgspec.msgpack.encode(msgspec.structs.replace(work, contacts=contacts))

        work = Work(
            task=str(path), arguments=list(arguments), strategy=chosen.text, workers=workers, servers=asked.servers,
            limits=list(plan.limits), seed=asked.seed, threads=threads,
            contacts=Contacts(book={}, launcher=""),
        )  # fmt: skip
        board = crew.start(roles, f"{seat.__name__}:enter", pack)
        file = crew.directory / "model.safetensors"
        stall = parse_duration(asked.stall)
        wishes = Wishes(score=False, model=file, stall=stall, watcher=asked.watcher, interrupt=interrupt)
        supervisor = Supervisor(plan, board, crew, judge, wishes)
        outcome = supervisor.run()
        known = facts_of(chosen, asked, str(script), "local", plan.limits, work.threads)
        result = conclude(
            known, judge, outcome.tallies,
            seconds=outcome.seconds, stopped=outcome.stopped, usage=outcome.usage, failures=outcome.refused,
        )  # fmt: skip
        result.keep_weights(build.read(file))
        if asked.save:
            build.copy(file, Path(asked.save))
        supervisor.see_off()
    return result
