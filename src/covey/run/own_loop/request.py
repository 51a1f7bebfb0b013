"""What was asked of a script's own loop, checked: nothing has started yet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from covey import catalog
from covey.checkpoint import RunRecord
from covey.engines import handover
from covey.engines.process.contacts import Contacts
from covey.errors import PlanError
from covey.observe.facts import RunOrigin
from covey.observe.membership import MembershipEvent
from covey.run.checks import check_continue_of_loops
from covey.run.options import Options
from covey.run.roles import RoleWork
from covey.spec import Spec
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
    spec: Spec  # of the strategy
    strategy: Strategy
    plan: Plan
    options: Options
    threads: int
    world: bool = False  # it joins one that has started the script already
    kept: Callable[[Path], None] | None = None  # is told of each checkpoint
    left: Callable[[MembershipEvent], None] | None = None  # is told of each process that is lost, while the run goes on
    origins: tuple[RunOrigin, ...] = ()  # the runs that it goes on from, and itself

    @property
    def run(self) -> RunRecord:
        """What a checkpoint says of it."""
        servers = sum(role.address.role == "server" for role in self.plan.roles)
        return RunRecord(
            strategy=self.strategy.text, workers=len(self.plan.limits), servers=servers,
            seed=self.options.training.seed, samples=0, batch_size=0, limits=list(self.plan.limits), loop=True,
            clock="real", origins=list(self.origins),
        )  # fmt: skip

    @property
    def handed(self) -> bytes:
        """What its roles are given of this process's memory."""
        return handover.pack(strategy=self.spec if self.spec.from_outside else None)

    def work(self, contacts: Contacts, kept: Path | None) -> RoleWork:
        """What each of its roles must know."""
        return RoleWork(
            task=self.script.path, module=self.script.module, arguments=list(self.script.arguments),
            strategy=None if self.spec.from_outside else self.spec, text=self.strategy.text,
            workers=len(self.plan.limits), servers=self.options.training.servers,
            limits=list(self.plan.limits), seed=self.options.training.seed, threads=self.threads, contacts=contacts,
            kept=str(kept.resolve()) if kept else "", checkpoint=self.options.checkpoints.checkpoint is not None,
            world=self.world, elastic=self.plan.elastic,
            traced=self.options.processes.profiled, profiled=self.options.processes.profiled,
        )  # fmt: skip


def loop_of(script: Script, strategy: str | Spec, workers: int, given: Options, threads: int) -> Loop:
    """Refuse what a script's own loop cannot have."""
    spec = catalog.chosen(strategy, workers)
    chosen = catalog.resolve(spec, workers)
    if chosen.composition.mesh:
        raise PlanError("`with mesh(…)` cuts the model, which works only for a Task: use covey run")
    if chosen.terms.chooses:
        raise PlanError(
            f"{chosen.name} chooses the samples of each gradient itself, so it cannot run a script's own loop: give "
            "covey run a Task, or launch the script with another strategy, such as bsp or easgd"
        )
    roles = tuple(chosen.layout(workers, given.training.servers))
    plan = Plan(
        roles=roles, limits=(given.budget.steps,) * workers, lockstep=chosen.lockstep, in_step=chosen.in_step,
        seed=given.training.seed, elastic=check_continue_of_loops(chosen, roles, given),
    )  # fmt: skip
    return Loop(script=script, spec=spec, strategy=chosen, plan=plan, options=given, threads=threads)
