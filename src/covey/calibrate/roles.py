"""A worker's side of a measurement: its process begins here."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import msgspec
import torch

from covey.calibrate.probes import TURNS, WARM, probe
from covey.decoding import WireFormat
from covey.engines import handover
from covey.engines.process.contacts import Contacts
from covey.engines.process.role.compute_thread import ComputeThread
from covey.engines.process.role.role_process import RoleLines, play
from covey.engines.process.snapshot_parts import SCORER
from covey.message import Address
from covey.model import build
from covey.model.scored import ScoredModel
from covey.run.roles import score_for
from covey.strategy import Plan, Role


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker must know to be measured."""

    task: str  # "file.py:task"; empty: it is handed over
    workers: int
    steps: int
    threads: int
    sizes: tuple[int, ...]  # of the messages, in bytes
    beside: tuple[int, ...]  # and of those on a link within this machine, over TCP, besides the run's own
    contacts: Contacts

    def plan(self) -> Plan:
        turns = min(TURNS, self.steps - WARM)
        work = partial(probe, sizes=self.sizes, beside=self.beside, turns=turns)
        roles = [Role(Address("worker", rank), work, trains=True, scored=rank == 0) for rank in range(self.workers)]
        return Plan(roles=tuple(roles), limits=(self.steps,) * self.workers, lockstep=False)


_assignments: WireFormat[Assignment] = WireFormat("assignment to be measured", Assignment)


def enter(data: bytes, handed: bytes, me: Address) -> None:
    """A worker's own process begins here."""
    given = _assignments.read(data, "the launcher")
    torch.set_num_threads(given.threads)
    with RoleLines(me, given.contacts) as lines:
        task = handover.task_of(handover.opened(handed), given.task)
        deal, plan = build.shards(task, given.workers, 0), given.plan()
        if me == SCORER:
            score_for(lines, plan, ScoredModel(build.model(task, 0), None))
        else:
            plain = replace(task, scheduler=None, schedule_by="epoch")  # which may need the length of a run
            replica = build.replica(plain, me, trains=True, deal=deal, budget=None)
            replica.compute.norms = []  # nn.SyncBatchNorm: computed alone it is a plain batch-norm
            play(lines, plan, replica, None, ComputeThread.serve)
