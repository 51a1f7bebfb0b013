"""The fork server of replicas: `python -m covey.inference.replicas.replica_fork_server FD PLACE`, started by the front.

It imports torch and loads the model once; each replica is a fork of it, which is ready within a fraction of a second.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import sys
from collections.abc import Iterable
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple

import torch

from covey.engines.process.child_process import entitle, forked_child, read
from covey.engines.transport import handles
from covey.errors import CoveyError
from covey.inference.replicas.fork_orders import StartOrder, orders, places
from covey.inference.replicas.replica_process import ReplicaConfig, answer_batches, compute_stage
from covey.inference.served_model import ModelPlace, ServedModel, load

PROGRAM = "covey.inference.replicas.replica_fork_server"
ALONE = "each-loads"  # the third word: replicas load the model themselves


def main(handle: int, text: str, alone: bool) -> None:
    """Fork a replica for each order, until the front hangs up; then all of them end."""
    entitle("covey: fork server")
    torch.set_num_threads(1)  # a thread of torch's would not be there after a fork, and be waited for
    place = places.read(text.encode(), "the front")
    model = None if alone else load(place)
    if not forkable():
        os.execv(sys.executable, [sys.executable, "-m", PROGRAM, str(handle), text, ALONE])
    gc.freeze()
    with socket.socket(fileno=handle) as line:
        serve(line, place, model)


class ReplicaChild(NamedTuple):
    """A process; those of one replica, its stages, are a group, which has the number of its first."""

    pid: int
    rank: int
    group: int


def forkable() -> bool:
    """Whether a fork of this process would be whole: other threads and a GPU's state do not come along."""
    return len(os.listdir("/proc/self/task")) == 1 and not torch.cuda.is_initialized()


def serve(line: socket.socket, place: ModelPlace, model: ServedModel | None) -> None:
    children: dict[int, ReplicaChild] = {}  # by handles of their processes
    poll = select.poll()
    poll.register(line, select.POLLIN)
    try:
        while True:
            for ready, _ in poll.poll():
                if ready != line.fileno():
                    poll.unregister(ready)
                    ended = children.pop(ready)
                    os.close(ready)
                    os.waitpid(ended.pid, 0)
                    kill(one for one in children.values() if one.group == ended.group)  # no use without this stage
                    continue
                order = orders.read(read(line), "the front")
                if isinstance(order, StartOrder):
                    for child in fork(line, order.config, place, model):
                        children[process := os.pidfd_open(child.pid)] = child
                        poll.register(process, select.POLLIN)
                else:
                    kill(one for one in children.values() if one.rank == order.rank)
    except (SystemExit, OSError):
        pass  # the front has hung up
    finally:
        kill(children.values())
        for one in children.values():
            os.waitpid(one.pid, 0)


def kill(children: Iterable[ReplicaChild]) -> None:
    for one in children:
        os.kill(one.pid, signal.SIGKILL)


def fork(
    line: socket.socket, config: ReplicaConfig, place: ModelPlace, model: ServedModel | None
) -> list[ReplicaChild]:  # fmt: skip
    """The processes of a new replica: one, or one for each stage, which are linked in a row.

    The first stage reads what the front sends, and the last one writes what the front gets, on the same link.
    """
    (handle,) = handles.take(line, 1)
    with ExitStack() as open_ones:
        front = open_ones.enter_context(socket.socket(fileno=handle))
        pairs = [[open_ones.enter_context(end) for end in socket.socketpair()] for _ in config.after]
        takes, gives = [front, *(pair[1] for pair in pairs)], [*(pair[0] for pair in pairs), front]
        pids = []
        for number in range(config.stages):
            mine = takes[number], gives[number]
            others = [end for end in (*takes, *gives) if end not in mine]
            title = f"covey: replica {config.rank}" + (f" stage {number}" if config.after else "")
            pids.append(forked_child(line, title, partial(work, *mine, others, config, number, place, model)))
    return [ReplicaChild(pid, config.rank, pids[0]) for pid in pids]


def work(
    takes: socket.socket, gives: socket.socket, others: Iterable[socket.socket], config: ReplicaConfig, number: int,
    place: ModelPlace, model: ServedModel | None,
) -> None:  # fmt: skip
    """What a new process does."""
    for link in others:
        link.close()
    with takes, gives:
        try:
            if config.after:
                return compute_stage(takes, gives, config, number, model or load(place))
            answer_batches(takes, config, model or load(place))
        except (BrokenPipeError, ConnectionResetError):
            pass  # the front, or another stage, has ended
        except CoveyError as error:
            print(f"replica {config.rank} could not go on: {error}", file=sys.stderr)


if __name__ == "__main__":
    try:
        main(int(sys.argv[1]), sys.argv[2], sys.argv[3:] == [ALONE])
    except CoveyError as error:
        sys.exit(f"a replica could not be started: {error}")
