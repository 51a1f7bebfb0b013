"""The trial server: one process that imports torch and the task, and forks a process for each trial."""

from __future__ import annotations

import gc
import os
import select
import socket
import sys
from pathlib import Path

import msgspec

from covey import atomic_file
from covey.engines.process.child_process import die_with_parent, entitle, forked_child, read, write
from covey.tune.trial_messages import TrialEnded, preparations

TITLE = "covey: trial server"


def main(handle: int, parent: int) -> None:
    """Fork a process for each list of segments, until the line is closed; then all of them end with this one."""
    die_with_parent()
    if os.getppid() != parent:
        return
    entitle(TITLE)
    line = socket.socket(fileno=handle)
    from covey.names import task_name
    from covey.task.file import import_file
    from covey.tune.fused import train_together
    from covey.tune.segment import OUTCOME, segments  # with torch, while the launcher checks what was asked

    warm()
    path, name, _ = task_name(preparations.read(read(line), "the launcher").task)
    module = import_file(path)

    def work(data: bytes) -> None:
        asked = segments.read(data, "the launcher")
        folders = {segment.trial: Path(segment.folder) for segment in asked}
        for outcome in train_together(asked, module, name or "task"):
            text = msgspec.json.encode(outcome).decode()
            atomic_file.write(folders[outcome.trial] / OUTCOME, text, ours=True)

    gc.freeze()
    poll = select.poll()
    poll.register(line, select.POLLIN)
    children: dict[int, tuple[int, list[int]]] = {}
    while True:
        for ready, _ in poll.poll():
            if ready == line.fileno():
                data = read(line)
                numbers = [segment.trial for segment in segments.read(data, "the launcher")]
                pid = forked_child(line, f"covey: trial {numbers[0]}", lambda data=data: work(data))  # type: ignore[misc]
                children[process := os.pidfd_open(pid)] = pid, numbers
                poll.register(process, select.POLLIN)
            else:
                pid, numbers = children.pop(ready)
                poll.unregister(ready)
                os.close(ready)
                code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                write(line, msgspec.msgpack.encode(TrialEnded(numbers, code)))


def warm() -> None:
    """Train a step of something small, so that forks find everything imported: of torch, much is when it is used."""
    import torch
    from torch import nn

    from covey.run import fit
    from covey.task import Task

    task = Task(
        model=lambda: nn.Linear(1, 1), data=(torch.ones(1, 1), torch.ones(1, 1)), loss=nn.functional.mse_loss,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1), batch_size=1,
    )  # fmt: skip
    fit(task, "bsp", 1, engine="simulated", steps=1, runs=False)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
