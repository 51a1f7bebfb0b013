"""How a task built in a notebook reaches the run's own processes: through an inherited pipe, never a socket.

This is the only file that pickles anything.
"""

from __future__ import annotations

import pickle
import sys
from typing import Any

import cloudpickle
import msgspec

from covey.decoding import WireFormat
from covey.errors import PlanError
from covey.task import TASK_MODULE, Task, load_task

MOST = 4_000_000_000  # bytes; msgpack cannot say more than 2**32, and every role takes a copy


class Handover(msgspec.Struct, frozen=True, kw_only=True):
    """What is handed to the roles of one host, besides their work."""

    pickled: bytes = b""  # a task of the launcher's memory
    file: str = ""  # where the task's file is on this host, if it came along
    rows: str = ""  # a file with the data of this host's worker, where they are not the task's


def pack(task: Any) -> bytes:
    """The task as bytes for this run's own children."""
    for name, module in list(sys.modules.items()):
        if name.startswith(TASK_MODULE):  # a file that load_task read: no other process can import it by that name
            cloudpickle.register_pickle_by_value(module)
    try:
        data = bytes(cloudpickle.dumps(task))
    except Exception as error:  # whatever a user's object raises when pickled
        raise PlanError(
            f"the task cannot be handed to other processes: {error}; put it into a file and use 'FILE.py:task'"
        ) from error
    if len(data) > MOST:
        raise PlanError(
            f"the task holds {len(data) >> 30} GB, too much to hand to other processes; "
            "put it into a file that loads its data itself, and use 'FILE.py:task'"
        )
    return closed(Handover(pickled=data))


def task_of(given: Handover, named: str) -> Task:
    """The task that has a name, from its file as it lies on this host; else the one that this process was handed."""
    if named:
        return load_task(given.file or named)
    task: Task = pickle.loads(given.pickled)
    return task


_parcels: WireFormat[Handover] = WireFormat("parcel for the roles of a host", Handover)


def closed(given: Handover) -> bytes:
    return msgspec.msgpack.encode(given)


def opened(handed: bytes) -> Handover:
    """What was handed over; nothing at all is an empty parcel."""
    return _parcels.read(handed, "the launcher") if handed else Handover()
