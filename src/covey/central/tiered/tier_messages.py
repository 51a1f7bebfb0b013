"""What is said where parameters live on machines of which some may vanish.

A view is a time in which the same roles serve. What is of an earlier view than the receiver's is dropped.
"""

from __future__ import annotations

from covey.message import Address, Message
from covey.vector import Vector


class StartRound(Message):
    """(From the controller) Begin a step: who serves each partition, who computes, and the receiver's batch.

    `incarnations` are those of the team. `done` is how many samples of the receiver count before this step.
    """

    wire_name = "tiered.start"

    view: int
    step: int
    owners: tuple[Address, ...]
    team: tuple[int, ...]
    incarnations: tuple[int, ...]
    seat: int
    number: int
    done: int

    counted = kept = False


class RoundParams(Message):
    """An owner's partitions, and the float buffers from the owner of the first one."""

    wire_name = "tiered.params"

    view: int
    step: int
    params: Vector
    buffers: Vector

    kept = False


class RoundPush(Message):
    """A worker's gradient for an owner's partitions; the owner of the first one also gets the float buffers."""

    wire_name = "tiered.push"

    view: int
    step: int
    samples: int
    grad: Vector
    buffers: Vector

    kept = False


class PushesHeld(Message):
    """(To the controller) An owner has the gradients of these workers; the others of the team are lost."""

    wire_name = "tiered.held"

    view: int
    step: int
    ranks: tuple[int, ...]

    counted = kept = False


class ApplyRound(Message):
    """(From the controller) All owners have the gradients of these workers: step; send a `backup` after it, if so."""

    wire_name = "tiered.apply"

    view: int
    step: int
    ranks: tuple[int, ...]
    backup: bool

    counted = kept = False


class PartitionStates(Message):
    """Partitions after `clock` steps: a backup from their owner, or from the backup to who owns them from now on."""

    wire_name = "tiered.states"

    view: int
    clock: int
    states: Vector

    kept = False


class BackupKept(Message):
    """(To the controller) The sender has the backups of all its partitions after `clock` steps."""

    wire_name = "tiered.kept"

    view: int
    clock: int

    counted = kept = False


class CommitBackup(Message):
    """(From the controller) All servers have their backups of this clock: go back to no earlier one."""

    wire_name = "tiered.commit"

    clock: int

    counted = kept = False


class WarnedWorker(Message):
    """(To the controller) The sender's machine will depart soon."""

    wire_name = "tiered.warned"

    counted = kept = False


class StopWanted(Message):
    """(To the controller) The run is to end, as its budget is spent or its target reached."""

    wire_name = "tiered.stop"

    counted = kept = False


class StandDown(Message):
    """(From the controller) Nobody needs the receiver any more; `over`: because the run is, and so many samples count.

    Those are the receiver's own.
    """

    wire_name = "tiered.stand_down"

    over: bool
    done: int = 0

    counted = kept = False
