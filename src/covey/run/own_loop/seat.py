"""A role's own process: it runs the user's script, which finds its place in the run here."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import torch

from covey import catalog
from covey.checkpoint import RoleState
from covey.engines import handover
from covey.engines.process.role import tell_failure
from covey.errors import PlanError
from covey.message import Address
from covey.run.roles import Work


class Seat:
    """This process's place in a run; `leave` is called when its role is over."""

    def __init__(self, work: Work, me: Address, leave: Callable[[], None] = lambda: None) -> None:
        self.work, self.me, self.plan, self.leave = work, me, work.plan(), leave
        self.joined = False

    @property
    def kept(self) -> RoleState | None:
        """What this role goes on from."""
        return RoleState.read(Path(self.work.kept), self.me) if self.work.kept else None

    def check_clip(self) -> None:
        """Refuse to clip where the strategy cannot."""
        chosen = catalog.resolve(self.work.strategy, self.work.workers)
        chosen.check_clip(chosen.servers if self.work.servers is None else self.work.servers)


SEAT: Seat | None = None


def enter(data: bytes, handed: bytes, me: Address) -> None:
    """A role's own process begins here: it runs the user's script."""
    global SEAT  # noqa: PLW0603  # the script finds its run without being told
    work = msgspec.msgpack.decode(data, type=Work)
    torch.set_num_threads(work.threads)
    torch.manual_seed(work.seed)
    SEAT = Seat(work, me)
    path = handover.opened(handed).file or work.task  # where it lies on this host, if it came along
    try:
        run_script(path, work)
    except SystemExit:
        if SEAT.joined:
            raise
    except Exception as error:
        tell_failure(me, work.contacts, error)
    if not SEAT.joined:
        missing = PlanError(f"{path} ended without calling covey.join: put it around the training loop")
        tell_failure(me, work.contacts, missing)


def run_script(path: str, work: Work) -> None:
    """As Python would run it, with its arguments."""
    sys.argv = [path, *work.arguments]
    if work.module:
        runpy.run_module(work.module, run_name="__main__", alter_sys=True)
    else:
        sys.path.insert(0, str(Path(path).parent))
        runpy.run_path(path, run_name="__main__")
