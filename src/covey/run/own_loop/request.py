"""What was asked of a script's own loop, checked: nothing has started yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from covey import catalog
from covey.checkpoint import RunRecord
from covey.engines.process.contacts import Contacts
from covey.errors import PlanError
from covey.run.options import Options
from covey.run.roles import RoleWork
from covey.strategy import Plan, Strategy


@dataclass(frozen=True, kw_only=True, slots=True)
class Script:
    """A program with a training loop."""

    path: str  # of its file
    name: str  # as it was written
    module: str = ""  # its name, if it was started with -m
    arguments: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Loop:
    """A run of a script that was found possible."""

    script: Script
    strategy: Strategy
    plan: Plan
    options: Options
    threads: int
    world: bool = False  # it joins one that has started the script already

    @property
    def run(self) -> RunRecord:
        """What a checkpoint says of it."""
        servers = sum(role.address.role == "server" for role in self.plan.roles)
        return RunRecord(
            strategy=self.strategy.text, workers=len(self.plan.limits), servers=servers, seed=self.options.seed,
            samples=0, batch_size=0, limits=list(self.plan.limits), loop=True,
        )  # fmt: skip

    def work(self, contacts: Contacts, kept: Path | None) -> RoleWork:
        """What each of its roles must know."""
        return RoleWork(
            task=self.script.path, module=self.script.module, arguments=list(self.script.arguments),
            strategy=self.strategy.text, workers=len(self.plan.limits), servers=self.options.servers,
            limits=list(self.plan.limits), seed=self.options.seed, threads=self.threads, contacts=contacts,
            kept=str(kept.resolve()) if kept else "", checkpoint=self.options.checkpoint is not None,
            world=self.world,
        )  # fmt: skip


def loop_of(script: Script, strategy: str, workers: int, given: Options, threads: int) -> Loop:
    """Refuse what a script's own loop cannot have."""
    chosen = catalog.resolve(strategy, workers)
    if chosen.mesh:
        raise PlanError("`with mesh(…)` cuts the model, which works only for a Task: use covey run")
    if chosen.chooses:
        raise PlanError(
            f"{chosen.name} chooses the samples of each gradient itself, so it cannot run a script's own loop: give "
            "covey run a Task, or launch the script with another strategy, such as bsp or easgd"
        )
    roles = tuple(chosen.layout(workers, given.servers))
    plan = Plan(
        roles=roles, limits=(given.steps,) * workers, lockstep=chosen.lockstep, in_step=chosen.in_step, seed=given.seed
    )
    return Loop(script=script, strategy=chosen, plan=plan, options=given, threads=threads)
