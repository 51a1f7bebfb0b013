"""The state of a role in a checkpoint: saving and restoring it."""

from __future__ import annotations

import time
from pathlib import Path
from random import Random
from threading import Thread
from typing import Any, Protocol

from covey.checkpoint import RoleState, StateCopy
from covey.decoding import UNREADABLE
from covey.engines.mailbox import Mailbox
from covey.engines.pace import Pace
from covey.engines.process import control
from covey.engines.process.control_lines import RoleLine
from covey.engines.remembered import Remembered
from covey.errors import CheckpointError
from covey.membership import Incarnation
from covey.message import Address
from covey.model.named import members
from covey.model.replica import Replica


class KeptRole(Protocol):
    """What of a role a checkpoint keeps, apart from what was sent to it."""

    @property
    def pace(self) -> Pace: ...
    @property
    def memories(self) -> Remembered: ...
    @property
    def rng(self) -> Random: ...
    @property
    def incarnation(self) -> Incarnation: ...


class SavedHost(KeptRole, Protocol):
    """The same with what was sent to it."""

    @property
    def mailbox(self) -> Mailbox: ...


def state_of(host: SavedHost, replica: Replica, *, held: bool, ended: bool, seconds: float) -> RoleState:
    """The role between two steps: nothing computes, and what was sent to it lies in its mailbox."""
    pace = host.pace
    begun = held or pace.over(pace.step)  # it has asked for this step, and not done it
    done = pace.step if begun else pace.next
    if ended and host.incarnation.number and pace.limit is not None:
        done = pace.limit  # it may have been restarted when nothing was left to do
    own: dict[str, Any] = {
        "piece": replica.trained, "optimizer_class": type(replica.optimizer).__name__, "members": members(replica),
        **replica.shown.state(),
    }  # fmt: skip
    if replica.batch_source.loop:
        own["loop"] = replica.batch_source.loop()
    return RoleState.of(
        done=done, seconds=seconds,
        memories=host.memories.values(), replica={**replica.state(), **own}, rng=host.rng,
        mailbox=[message for message in host.mailbox.waiting if message.kept],
    )  # fmt: skip


def write_aside(copy: StateCopy, directory: Path, who: Address, line: RoleLine) -> None:
    """Write the copy on a thread of its own while training goes on, and then say so on the line."""

    def write() -> None:
        why = ""
        try:
            copy.write(directory, who)
        except OSError as error:  # a full disk does not end the run
            why = error.strerror or str(error)
        line.hand(control.Saved(why, time.thread_time()))

    Thread(target=write, name="checkpoint", daemon=True).start()


def restore(replica: Replica, kept: dict[str, Any]) -> None:
    """Take over a kept replica: a server's shard first becomes that shard, for its optimizer's state fits no other."""
    theirs, ours = kept.get("optimizer_class"), type(replica.optimizer).__name__
    if theirs != ours:
        raise CheckpointError(
            f"the checkpoint is of a run whose optimizer is {theirs}, this one has {ours}: use {theirs}, or start anew"
        )
    try:
        if not replica.layout.differs(kept["layout"]):
            replica.keep(kept["piece"], buffers=True)
        replica.restore(kept)
    except (*UNREADABLE, AssertionError) as error:
        raise CheckpointError(
            f"what the checkpoint keeps of the model does not fit this one ({error!r}): use the model of that run, or "
            "start anew"
        ) from None
