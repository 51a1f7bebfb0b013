"""Synchronous data parallelism with 2 workers: covey's allreduce against DistributedDataParallel over Gloo.

A CNN on Fashion-MNIST, and an MLP of 25 million parameters whose gradients weigh more than its arithmetic. Both take
the same batches, one thread each, in processes of their own that take turns. `python -m benchmarks.data_parallel`
"""

from __future__ import annotations

import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

import covey
from benchmarks.push_pull import free_port
from covey import build
from covey.data import Feed
from covey.task import Task, load_task

ROOT = Path(__file__).parent.parent
WORKERS = 2
WARM_UP = 5
STEPS = {"cnn": 60, "mlp": 20}


def task(name: str) -> Task:
    fashion = replace(load_task(str(ROOT / "examples" / "fashion.py")), evaluate=None)
    if name == "cnn":
        return fashion
    return replace(fashion, model=mlp, optimizer=lambda params: torch.optim.SGD(params, lr=0.01, momentum=0.9))


def mlp() -> nn.Module:
    """25 million parameters: 100 MB of gradients for each step."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 4400), nn.ReLU(), nn.Linear(4400, 4400), nn.ReLU(), nn.Linear(4400, 480),
        nn.ReLU(), nn.Linear(480, 10),
    )  # fmt: skip


def member(name: str, rank: int, port: int) -> None:
    """One process of DDP; the first prints the samples that both train in a second."""
    from torch import distributed
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=WORKERS)
    given = task(name)
    model = DistributedDataParallel(build.model(given, 0))
    optimizer = given.optimizer(list(model.module.named_parameters()))
    batches = Feed(given.data, build.shards(given, WORKERS, 0), rank).start(0)
    samples, begin = 0, 0.0
    for step in range(WARM_UP + STEPS[name]):
        if step == WARM_UP:
            samples, begin = 0, time.perf_counter()
        x, y = next(batches)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        samples += WORKERS * len(x)
    if rank == 0:
        print(samples / (time.perf_counter() - begin), flush=True)
    distributed.destroy_process_group()


def ddp(name: str) -> None:
    spawn, port = multiprocessing.get_context("spawn"), free_port()
    processes = [spawn.Process(target=member, args=(name, rank, port)) for rank in range(WORKERS)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()


def ours(name: str) -> None:
    """Samples in a second of the steps after the warm-up."""
    given = task(name)

    def run(steps: int) -> tuple[int, float]:
        result = covey.fit(given, "allreduce", WORKERS, steps=steps, threads=1)
        return result.samples, result.seconds

    short, long = run(WARM_UP), run(WARM_UP + STEPS[name])
    print((long[0] - short[0]) / (long[1] - short[1]), flush=True)


def measure(rounds: int = 3) -> dict[str, dict[str, float]]:
    """Median samples in a second, and covey's as a ratio to DDP's."""
    found = {}
    for name in STEPS:
        rates: dict[str, list[float]] = {"covey": [], "ddp": []}
        for _ in range(rounds):
            for who, taken in rates.items():
                command = [sys.executable, "-m", "benchmarks.data_parallel", who, name]
                done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
                taken.append(float(done.stdout.strip().splitlines()[-1]))
        ratios = [mine / theirs for mine, theirs in zip(rates["covey"], rates["ddp"], strict=True)]
        found[name] = {
            **{who: statistics.median(taken) for who, taken in rates.items()},
            "ratio": statistics.median(ratios), "least": min(ratios), "most": max(ratios),
        }  # fmt: skip
    return found


if __name__ == "__main__":
    if len(sys.argv) > 1:
        {"covey": ours, "ddp": ddp}[sys.argv[1]](sys.argv[2])
    else:
        print(json.dumps(measure(), indent=2))
