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

import torch

from covey.engines.process.child_process import entitle, forked_child, read
from covey.engines.transport import handles
from covey.errors import CoveyError
from covey.inference.replicas.fork_orders import StartOrder, orders, places
from covey.inference.replicas.replica_process import ReplicaConfig, answer_batches
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


def forkable() -> bool:
    """Whether a fork of this process would be whole: other threads and a GPU's state do not come along."""
    return len(os.listdir("/proc/self/task")) == 1 and not torch.cuda.is_initialized()


def serve(line: socket.socket, place: ModelPlace, model: ServedModel | None) -> None:
    children: dict[int, tuple[int, int]] = {}  # the process number and the rank of each, by a handle of its process
    poll = select.poll()
    poll.register(line, select.POLLIN)
    try:
        while True:
            for ready, _ in poll.poll():
                if ready != line.fileno():
                    poll.unregister(ready)
                    pid, _ = children.pop(ready)
                    os.close(ready)
                    os.waitpid(pid, 0)
                    continue
                order = orders.read(read(line), "the front")
                if isinstance(order, StartOrder):
                    pid = fork(line, order.config, place, model)
                    children[process := os.pidfd_open(pid)] = pid, order.config.rank
                    poll.register(process, select.POLLIN)
                else:
                    kill(pid for pid, rank in children.values() if rank == order.rank)
    except (SystemExit, OSError):
        pass  # the front has hung up
    finally:
        kill(pid for pid, _ in children.values())
        for pid, _ in children.values():
            os.waitpid(pid, 0)


def kill(pids: Iterable[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def fork(line: socket.socket, config: ReplicaConfig, place: ModelPlace, model: ServedModel | None) -> int:
    """The process number of a new replica."""
    (handle,) = handles.take(line, 1)

    def work() -> None:
        with link:
            try:
                answer_batches(link, config, model or load(place))
            except (BrokenPipeError, ConnectionResetError):
                pass  # the front has ended
            except CoveyError as error:
                print(f"replica {config.rank} could not go on: {error}", file=sys.stderr)

    with socket.socket(fileno=handle) as link:
        return forked_child(line, f"covey: replica {config.rank}", work)


if __name__ == "__main__":
    try:
        main(int(sys.argv[1]), sys.argv[2], sys.argv[3:] == [ALONE])
    except CoveyError as error:
        sys.exit(f"a replica could not be started: {error}")
