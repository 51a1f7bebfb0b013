"""A role's side of a run: its process begins here, knowing only its address and the work."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import msgspec
import torch

from covey import catalog
from covey.checkpoint.record import read_record
from covey.data.partitions import RowInfo
from covey.decoding import WireFormat
from covey.engines import handover
from covey.engines.process.contacts import Contacts
from covey.engines.process.role.compute_thread import ComputeThread
from covey.engines.process.role.role_process import RoleLines, play
from covey.engines.process.role.scorer import Scorer
from covey.engines.process.snapshot_parts import SCORER
from covey.errors import PlanError
from covey.message import Address
from covey.model import build
from covey.model.replica import Replica
from covey.model.scored import ScoredModel
from covey.run.changed_plan import later, take_over
from covey.run.kept import keep_own_settings, recalled
from covey.servers.preparing import with_preparers
from covey.spec import Spec
from covey.strategy import Plan, Strategy
from covey.strategy.roles import shown_by_any
from covey.task import load_task
from covey.task.adjusted import at_rate, with_number


class RoleWork(msgspec.Struct, frozen=True, kw_only=True):
    """What a role's process must know to become its role."""

    task: str
    module: str = ""  # of a script that was started with -m
    arguments: list[str] = []
    world: bool = False  # torchrun, mpirun or srun started the script, and it joined
    strategy: Spec | None = None  # None: it names what only the launcher knew, and was handed over
    text: str  # what the strategy is called, with all its settings
    workers: int
    replicas: int = 0  # that share the data, where several workers are one
    servers: int | None
    limits: list[int | None]
    seed: int
    rate: float = 1.0
    preparers: int | None = None
    threads: int
    budget: int | None = None
    contacts: Contacts
    warm: bool = False  # it does discarded steps before the run begins
    traced: bool = False
    profiled: bool = False
    elastic: bool = False  # lost workers are restarted
    least: int = 0  # workers, where they come and go
    copies: int = 1  # of what each server holds
    allowance: float | None = None
    kept: str = ""
    own_settings: bool = False  # of the task's optimizer, not those that were kept
    checkpoint: bool = False  # the run writes checkpoints
    recut: str = ""  # the strategy of what was kept, where that has another cut
    inherits: list[Address] = []  # the roles whose model this run goes on from, where those of what was kept are others
    skipped: list[int] = []  # steps of each worker that were done before the run had these workers
    rows: RowInfo | None = None  # of the workers, where each has its own
    samples: int = 0  # of the data, as the launcher found it

    def chosen(self, handed: Spec | None) -> Strategy:
        """The strategy of the run."""
        spec = self.strategy or handed
        assert spec is not None, "a strategy travels either here or with what was handed over"
        return catalog.resolve(spec, self.workers)

    def inherit(self, replica: Replica) -> None:
        """Go on from the model of a run with other roles."""
        place = Path(self.kept)
        run = read_record(place)
        take_over(place, run, self.inherits, replica)

    def plan(self, chosen: Strategy, preparers: int = 0) -> Plan:
        roles = shown_by_any(chosen.layout(self.workers, self.servers, self.copies), self.least)
        roles = with_preparers(roles, preparers)
        return Plan(
            roles=tuple(roles), limits=tuple(self.limits), lockstep=chosen.lockstep, in_step=chosen.in_step,
            seed=self.seed, traced=self.traced, profiled=self.profiled, elastic=self.elastic, least=self.least,
            replicas=self.copies, resumed=bool(self.kept) and self.least > 0, allowance=self.allowance,
            sites=self.contacts.machines,
        )  # fmt: skip


works: WireFormat[RoleWork] = WireFormat("work of a role", RoleWork)


def enter(data: bytes, handed: bytes, me: Address) -> None:
    """A role's own process begins here."""
    work = works.read(data, "the launcher")
    torch.set_num_threads(work.threads)
    with RoleLines(me, work.contacts) as lines:
        lines.doing("importing the task")
        given = handover.opened(handed)
        found = handover.of_memory(given)
        task = load_task(given.file or work.task) if work.task else found.task
        if work.task:  # one that was handed over is as the run wants it
            task = with_number(at_rate(task, work.rate), work.preparers)
        if work.rows:
            task = build.with_rows(task, work.rows, given.rows)
        lines.doing("building the model")
        if (there := build.device(task, me.rank)) and there.type == "cuda":
            torch.cuda.set_device(there)
        plan = work.plan(work.chosen(found.strategy), task.preparers)
        deal = build.shards(task, work.replicas or work.workers, work.seed, work.rows, taken=work.samples)
        if deal.samples != work.samples:
            raise PlanError(
                f"len(data) is {deal.samples} for {me}, and was {work.samples} for the launcher: every role builds the "
                "task for itself, and must find the same samples"
            )
        if me == SCORER:
            score_for(lines, plan, ScoredModel(build.model(task, work.seed), task.evaluate, task.ema is not None))
        else:
            role = plan.role(me)
            replica = build.replica(task, me, role.trains, deal, work.budget, role.part)
            if work.skipped:
                replica.batch_source = later(replica.batch_source, me.rank if role.trains else 0, work.skipped)
            kept, inherit = None, None
            if work.inherits:
                inherit = partial(work.inherit, replica)
            elif work.kept and not (work.least and role.trains):  # those ask servers where they go on
                kept = recalled(Path(work.kept), role, replica, work.recut, work.text)
                if work.own_settings:
                    keep_own_settings(kept, replica)
            play(lines, plan, replica, kept, ComputeThread.serve, work.warm, inherit)


def score_for(lines: RoleLines, plan: Plan, scored: ScoredModel) -> None:
    """Be the scorer of a run."""
    links = lines.open(plan.window, scored.flat.nbytes)
    lines.ready(scored.flat.params.numel)
    Scorer(links, lines.line, scored.assemble, scored.evaluate, scored.write).run()
