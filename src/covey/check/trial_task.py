"""The task, and the clusters, on which strategies from outside are tried."""

from __future__ import annotations

import torch
from torch import nn

from covey.simulate import Cluster, Seconds
from covey.task import Task

WORKERS = 4
EVEN = Cluster(compute=Seconds(0.01), jitter=0.3)
UNEVEN = Cluster(compute=Seconds(0.01), jitter=0.3, slowdowns={1: 2.0})
STUCK = Cluster(compute=Seconds(0.01), jitter=0.3, slowdowns={1: 1000.0})


def task(samples: int = 97) -> Task:
    """A small one: of 97 samples worker 0 has 25, in 4 batches, and the others 24, in 3."""
    chance = torch.Generator().manual_seed(2)
    x = torch.randn(samples, 6, dtype=torch.float64, generator=chance)
    y = (x @ torch.randn(6, 3, dtype=torch.float64, generator=chance)).argmax(1)
    return Task(
        model=lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double(), data=(x, y),
        optimizer=lambda pairs: torch.optim.SGD(pairs, lr=0.1), loss=nn.functional.cross_entropy, batch_size=8,
    )  # fmt: skip


TRIAL = task()  # for roles that load it from this file
