"""Synchronous data parallelism with 2 workers: covey's allreduce and sliced against DistributedDataParallel over Gloo.

A CNN on Fashion-MNIST, and an MLP of 25 million parameters whose gradients weigh more than its arithmetic, at two batch
sizes. All take the same batches, one thread each, in processes of their own that take turns; and `alone`, the same loop
without any exchange, which nothing can beat. What counts is the median step. `python -m benchmarks.data_parallel`
"""

from __future__ import annotations

import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn

import covey
from benchmarks.push_pull import free_port
from covey.data.feed import Feed
from covey.model import build
from covey.task import Task, load_task

ROOT = Path(__file__).parent.parent
WORKERS = 2
WARM_UP = 5
STEPS = {"cnn": 60, "mlp": 20, "mlp, batches of 16": 40}
TEAMS = ("allreduce", "sliced", "ddp", "alone")


class Clocked:
    """A loss that leaves in a file when each batch came to it."""

    def __init__(self, loss: Callable[[Tensor, Tensor], Tensor], file: str) -> None:
        self.loss, self.file = loss, file

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        with open(f"{self.file}.{os.getpid()}", "a") as times:
            times.write(f"{time.perf_counter()}\n")
        return self.loss(output, target)


def task(name: str, file: str) -> Task:
    fashion = replace(load_task(str(ROOT / "examples" / "fashion.py")), evaluate=None)
    timed = replace(fashion, loss=Clocked(nn.functional.cross_entropy, file))
    if name == "cnn":
        return timed
    size = 16 if "16" in name else fashion.batch_size
    return replace(
        timed, model=mlp, optimizer=lambda params: torch.optim.SGD(params, lr=0.01, momentum=0.9), batch_size=size
    )


def mlp() -> nn.Module:
    """25 million parameters: 100 MB of gradients for each step."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 4400), nn.ReLU(), nn.Linear(4400, 4400), nn.ReLU(), nn.Linear(4400, 480),
        nn.ReLU(), nn.Linear(480, 10),
    )  # fmt: skip


def member(team: str, name: str, file: str, rank: int, port: int) -> None:
    """One process of DDP, or one that trains alone."""
    from torch import distributed
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=WORKERS)
    given = task(name, file)
    assert given.loss is not None
    model = build.model(given, 0)
    optimizer = given.optimizer(list(model.named_parameters()))
    wrapped = DistributedDataParallel(model) if team == "ddp" else model
    batches = Feed(build.data_of(given), build.shards(given, WORKERS, 0), rank).start(0)
    for _ in range(WARM_UP + STEPS[name]):
        x, y = next(batches)
        optimizer.zero_grad()
        given.loss(wrapped(x), y).backward()
        optimizer.step()
    distributed.destroy_process_group()


def torch_team(team: str, name: str, file: str) -> None:
    spawn, port = multiprocessing.get_context("spawn"), free_port()
    processes = [spawn.Process(target=member, args=(team, name, file, rank, port)) for rank in range(WORKERS)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()


def run(team: str, name: str, file: str) -> None:
    """One team, in a process of its own."""
    if team in ("ddp", "alone"):
        torch_team(team, name, file)
    else:
        covey.fit(task(name, file), team, WORKERS, steps=WARM_UP + STEPS[name], threads=1)


def step_time(team: str, name: str) -> float:
    """Seconds of the median step after the warm-up, of whoever takes longer."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.data_parallel", team, name, f"{folder}/times"]
        subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        found = []
        for file in Path(folder).iterdir():
            times = [float(line) for line in file.read_text().splitlines()][WARM_UP:]
            found.append(statistics.median(after - before for before, after in pairwise(times)))
    assert len(found) == WORKERS, "every worker leaves its times"
    return max(found)


def measure(rounds: int = 3, names: tuple[str, ...] = tuple(STEPS)) -> dict[str, dict[str, object]]:
    """Median seconds of a step, and how much faster than DDP's it is in the same round: median, least and most."""
    found: dict[str, dict[str, object]] = {}
    for name in names:
        taken: dict[str, list[float]] = {team: [] for team in TEAMS}
        for _ in range(rounds):
            for team in TEAMS:
                taken[team].append(step_time(team, name))
        found[name] = {"seconds": {team: statistics.median(times) for team, times in taken.items()}}
        for team in TEAMS:
            ratios = [theirs / mine for mine, theirs in zip(taken[team], taken["ddp"], strict=True)]
            found[name][team] = [statistics.median(ratios), min(ratios), max(ratios)]
    return found


if __name__ == "__main__":
    if len(sys.argv) > 2:
        run(*sys.argv[1:])
    else:
        print(json.dumps(measure(), indent=2))
