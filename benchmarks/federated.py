"""How many clients train per second in a simulated federated run, beside Flower's simulation?

    python -m venv /tmp/flower && /tmp/flower/bin/pip install 'flwr[simulation]' torch numpy
    python -m benchmarks.federated /tmp/flower/bin/python

1,000 clients with the same samples on both sides, 50 a round, one epoch each; the two take turns. covey also simulates
clocks, links and who is there. Flower is timed from its first round on, covey with all that a run has. Without an
argument only covey is timed.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

import covey
from covey.data.client_shares import Dirichlet, divided

CLIENTS, PER_ROUND, ROUNDS, REPEATS = 1000, 50, 20, 3
PEER = Path(__file__).parent / "peers" / "flower_rounds.py"


def data(samples: int, seed: int) -> TensorDataset:
    """Ten classes around ten points, which a small network tells apart after some rounds."""
    chance = torch.Generator().manual_seed(seed)
    points = torch.randn(10, 64, generator=torch.Generator().manual_seed(0))
    y = torch.randint(10, (samples,), generator=chance)
    return TensorDataset(points[y] + 1.5 * torch.randn(samples, 64, generator=chance), y)


def task() -> covey.Task:
    return covey.Task(
        model=lambda: nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)), data=data(30_000, 1),
        optimizer=lambda params: torch.optim.SGD(params, lr=0.05), loss=nn.functional.cross_entropy, batch_size=10,
        evaluate=covey.accuracy(data(5_000, 2)),
    )  # fmt: skip


def own() -> tuple[float, float, float]:
    """Client-rounds per second, the accuracy in the end, and CPU seconds."""
    before, used = time.perf_counter(), time.process_time()
    result = covey.federate(
        task(), "fedavg", CLIENTS, per_round=PER_ROUND, rounds=ROUNDS, partition="dirichlet(alpha=0.3)", over=1.0,
        score_every=ROUNDS, runs=False,
    )  # fmt: skip
    seconds, used = time.perf_counter() - before, time.process_time() - used
    assert result.participation
    accuracy = float(result.history[-1]["accuracy"] or 0)
    return sum(one.reports for one in result.participation.rounds) / seconds, accuracy, used


def measure(python: str = "") -> dict[str, object]:
    torch.set_num_threads(1)
    ours, theirs = [], []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "data.pt"
        train, test = data(30_000, 1), data(5_000, 2)
        samples = divided(Dirichlet(alpha=0.3), train, CLIENTS, seed=0)
        torch.save({"train": train.tensors, "test": test.tensors, "clients": samples}, file)
        for _ in range(REPEATS):
            ours.append(own())
            if python:
                command = [python, str(PEER), str(file), str(PER_ROUND), str(ROUNDS)]
                said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
                theirs.append(json.loads(said.splitlines()[-1]))
    found: dict[str, object] = {"covey (client-rounds/s, accuracy, CPU s)": ours, "flower": theirs}
    if theirs:
        rates, used = ([statistics.median(one[n] for one in side) for side in (ours, theirs)] for n in (0, 2))
        found["times as fast"], found["of its CPU time"] = round(rates[0] / rates[1], 2), round(used[0] / used[1], 3)
    return found


if __name__ == "__main__":
    print(json.dumps(measure(*sys.argv[1:]), indent=1))
