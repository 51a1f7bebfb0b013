"""A role's own process: it runs the user's script, which finds its place in the run here."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from covey.checkpoint import RoleState
from covey.data.seeded_draws import seed_all
from covey.engines import handover
from covey.engines.process.role.role_process import tell_failure
from covey.errors import PlanError
from covey.exchange.gathered_rows import GatheringWorkers
from covey.message import Address
from covey.model.replica import Replica
from covey.program import Node
from covey.run.own_loop.keeping import LoopState, Stateful
from covey.run.roles import RoleWork, works
from covey.strategy import Plan, Strategy


class JoinedRole:
    """This process's place in a run; `leave` is called when its role is over."""

    def __init__(
        self, work: RoleWork, strategy: Strategy, me: Address, leave: Callable[[], None] = lambda: None
    ) -> None:
        self.work, self.strategy, self.me, self.leave = work, strategy, me, leave
        self.plan = work.plan(strategy)
        self.joined = self.entered = False  # covey.join was called, and the role begun: a worker's with its block

    @cached_property
    def kept(self) -> RoleState | None:
        """What this role goes on from."""
        return RoleState.read(Path(self.work.kept), self.me) if self.work.kept else None

    @property
    def local_rank(self) -> int:
        """This worker's number among those that see the same GPUs: of its machine, or of its site in a cluster."""
        sites = self.work.contacts.sites
        here = [
            role.address for role in self.plan.roles
            if role.trains and sites.get(str(role.address)) == sites.get(str(self.me))
        ]  # fmt: skip
        return here.index(self.me) if self.me in here else 0

    def keeping(
        self, models: Sequence[nn.Module], optimizers: Sequence[Optimizer], keep: Sequence[Stateful]
    ) -> LoopState:
        """What a checkpoint holds of this worker's loop. One that was over when the run was kept takes no step more."""
        past = self.kept.replica.get("loop") if self.kept else None
        found = LoopState(models, optimizers, past, self.work.checkpoint, self.work.elastic)
        found.add(keep)
        if self.kept and found.position.kept.left:
            limits = [self.kept.done if rank == self.me.rank else each for rank, each in enumerate(self.plan.limits)]
            self.plan = replace(self.plan, limits=tuple(limits))
        return found

    def plan_telling(self, rows: GatheringWorkers) -> Plan:
        """The plan, in which this role's program also tells those who gather what its node is."""
        role = self.plan.role(self.me)

        def program(node: Node, replica: Replica) -> Any:
            rows.node = node
            return role.program(node, replica)

        roles = tuple(replace(one, program=program) if one is role else one for one in self.plan.roles)
        return replace(self.plan, roles=roles)

    def check_clip(self) -> None:
        """Refuse to clip where the strategy cannot."""
        self.strategy.check_clip(self.strategy.servers.count if self.work.servers is None else self.work.servers)


JOINED: JoinedRole | None = None


def enter(data: bytes, handed: bytes, me: Address) -> None:
    """A role's own process begins here: it runs the user's script."""
    global JOINED  # noqa: PLW0603  # the script finds its run here
    work = works.read(data, "the launcher")
    torch.set_num_threads(work.threads)
    seed_all(work.seed)
    given = handover.opened(handed)
    JOINED = JoinedRole(work, work.chosen(handover.of_memory(given).strategy), me)
    if not work.world:  # the ranks of a world have one already, and a process beside a rank has that one
        os.environ["LOCAL_RANK"] = str(JOINED.local_rank)
    path = given.file or work.task  # where it lies on this host, if it came along
    missing = PlanError(f"{path} ended without calling covey.join: put it around the training loop")
    try:
        run_script(path, work)
    except SystemExit as leaving:
        if JOINED.entered:
            raise
        missing = PlanError(f"{path} called sys.exit({leaving.code!r}) before covey.join")
    except Exception as error:
        tell_failure(me, work.contacts, error)
    if not JOINED.joined:
        tell_failure(me, work.contacts, missing)
    elif not JOINED.entered:
        outside = PlanError(f"{path} called covey.join, but no block began: write `with covey.join(…) as member:`")
        tell_failure(me, work.contacts, outside)


def run_script(path: str, work: RoleWork) -> None:
    """As Python would run it, with its arguments."""
    sys.argv = [path, *work.arguments]
    if work.module:
        runpy.run_module(work.module, run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, str(Path(path).parent))
        runpy.run_path(path, run_name="__main__")
