"""How a task built in a notebook reaches the run's own processes: through an inherited pipe, never a socket.

This is the only file that pickles anything.
"""

from __future__ import annotations

import pickle
import sys
from typing import Any

import cloudpickle

from covey.errors import PlanError
from covey.task import TASK_MODULE

MOST = 4_000_000_000  # bytes; msgpack cannot say more than 2**32, and every role takes a copy


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
    return data


def unpack(data: bytes) -> Any:
    """The task that the parent of this process packed."""
    return pickle.loads(data)
