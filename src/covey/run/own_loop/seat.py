"""A role's own process: it runs the user's script, which finds its place in the run here."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import msgspec
import torch

from covey.engines.process.role import tell_failure
from covey.errors import PlanError
from covey.message import Address
from covey.run.roles import Work


class Seat:
    """This process's place in a launched run."""

    def __init__(self, work: Work, me: Address) -> None:
        self.work, self.me, self.plan = work, me, work.plan()
        self.joined = False


SEAT: Seat | None = None


def enter(data: bytes, handed: bytes, me: Address) -> None:
    """A role's own process begins here: it runs the user's script."""
    global SEAT  # noqa: PLW0603  # the script finds its run without being told
    work = msgspec.msgpack.decode(data, type=Work)
    torch.set_num_threads(work.threads)
    torch.manual_seed(work.seed)
    SEAT = Seat(work, me)
    sys.argv = [work.task, *work.arguments]
    sys.path.insert(0, str(Path(work.task).parent))
    try:
        runpy.run_path(work.task, run_name="__main__")
    except SystemExit:
        if SEAT.joined:
            raise
    except Exception as error:
        tell_failure(me, work.contacts, error)
    if not SEAT.joined:
        missing = PlanError(f"{work.task} ended without calling covey.join: put it around the training loop")
        tell_failure(me, work.contacts, missing)
