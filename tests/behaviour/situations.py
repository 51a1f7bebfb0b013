"""Situations in which strategies are tried, chosen so that everything counts: speeds, ends, sizes, servers, hosts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from covey import catalog
from covey.errors import PlanError
from covey.simulate import BytesPerSecond, Cluster, Link, Seconds
from covey.simulate.machines import CpuTime, Handling, Machine
from covey.strategy import Strategy
from covey.task import Task
from tests.pages.compatibility import grouped
from tests.worlds import adam, cloud, sgd

UNEVEN = Cluster(
    compute=Seconds(0.01), jitter=0.2, slowdowns={1: 2.7, 2: 1.3, 3: 1.7},
    link=Link(bandwidth=BytesPerSecond(1e6), latency=Seconds(4e-4)),
    links={"worker 2": Link(bandwidth=BytesPerSecond(3e5))},
)  # fmt: skip
"""All differ in speed, and worker 2 has a slow link."""

HOSTS = Cluster(
    compute=Seconds(0.01), slowdowns={1: 1.7, 3: 2.3}, fixed=0.2, update=Seconds(1e-8),
    link=Link(bandwidth=BytesPerSecond(8e5), latency=Seconds(3e-4), headers=0.05, cpu=CpuTime(each=Seconds(2e-5))),
    links={"node1": Link(bandwidth=BytesPerSecond(2e5), latency=Seconds(1e-3))},
    local=Link(bandwidth=BytesPerSecond(5e7), latency=Seconds(1e-5)),
    machines=(Machine(cores=2), Machine(cores=1.5)),
    handling=Handling(send=CpuTime(each=Seconds(1e-5)), receive=CpuTime(each=Seconds(1e-5), byte=Seconds(1e-9))),
)  # fmt: skip
"""Two hosts of two workers, the second with a slow link."""


@dataclass(frozen=True, kw_only=True)
class Situation:
    """A task, a cluster, and what else is asked of a run."""

    task: Task
    cluster: Cluster = UNEVEN
    workers: int = 3
    several: bool = False  # servers: two, where the strategy lets one choose
    more: Mapping[str, Any] = field(default_factory=dict)

    def of(self, spec: str) -> tuple[Task, int, dict[str, Any]]:
        """For a SPEC: the task as it can be trained with it, the workers, and the options."""
        workers = 4 if spec.startswith("butterfly") and self.workers == 3 else self.workers
        given: dict[str, Any] = {"cluster": fitted(self.cluster, workers), "epochs": 3, **self.more}
        try:
            strategy = catalog.resolve(spec, workers)
        except PlanError:
            return self.task, workers, given
        if self.several and takes(strategy, workers, 2):
            given["servers"] = 2
        return replace(self.task, clip_norm=clip(strategy, self.task, given.get("servers", 1))), workers, given


def fitted(cluster: Cluster, workers: int) -> Cluster:
    """The cluster, of which only so many workers are used."""
    slowdowns = {rank: slow for rank, slow in cluster.slowdowns.items() if rank < workers}
    links = {host: link for host, link in cluster.links.items() if host != "worker 2" or workers > 2}
    return replace(cluster, slowdowns=slowdowns, links=links)


def takes(strategy: Strategy, workers: int, servers: int) -> bool:
    """Whether one may ask for this number of servers."""
    try:
        return bool(strategy.layout(workers, servers))
    except PlanError:
        return False


def clip(strategy: Strategy, task: Task, servers: int) -> float | None:
    """The task's clipping, where the strategy can keep to it."""
    try:
        strategy.check_clip(servers)
    except PlanError:
        return None
    return task.clip_norm


def perceptron(inputs: tuple[torch.Tensor, torch.Tensor], **more: Any) -> Task:
    given: dict[str, Any] = {
        "model": lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double(), "data": inputs,
        "optimizer": sgd(0.3), "loss": functional.cross_entropy, "batch_size": 4, "evaluate": scored(inputs),
    }  # fmt: skip
    return Task(**(given | more))


def scored(inputs: tuple[torch.Tensor, torch.Tensor]) -> Any:
    """The loss on all samples, as a metric."""

    def evaluate(model: nn.Module) -> dict[str, float]:
        model.train()  # what chance and batches do to a model counts in these scores, too
        with torch.no_grad():
            return {"error": float(functional.cross_entropy(model(inputs[0]), inputs[1]))}

    return evaluate


def layered() -> nn.Module:
    """Layers of very different size, and batch-norm."""
    return nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Tanh(), nn.Flatten(), nn.Linear(8, 30), nn.Tanh(), nn.Linear(30, 3)
    ).double()


def images(samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = cloud(samples, inputs=16)
    return x.view(-1, 1, 4, 4), y


def rich() -> Task:
    """Momentum, weight decay, groups, a schedule of the rate, clipping, batch-norm.

    41 samples: of 4 workers the first has 11, in 3 batches, the last of one sample; the others have 10, in 2.
    """
    return perceptron(
        images(41), model=layered, batch_size=5, rate=lambda progress: 1 - 0.8 * progress, clip_norm=0.6,
        optimizer=lambda pairs: torch.optim.SGD(grouped(pairs, 0.05), momentum=0.9, nesterov=True),
    )  # fmt: skip


@cache
def situations() -> Mapping[str, Situation]:
    """By name. 37 samples: worker 0 has 13, in 4 batches, the last of one sample; the others have 12, in 3."""
    few = cloud(37)
    plain = perceptron(few)
    keeping = {"checkpoint": True, "every": "20ms"}
    death = "kill worker 1@61ms"
    return {
        "uneven": Situation(task=plain),
        "rich": Situation(task=rich(), workers=4, several=True, more={"epochs": 2}),
        "hosts": Situation(task=rich(), cluster=HOSTS, workers=4, several=True, more={"epochs": 2}),
        "adam": Situation(
            task=perceptron(few, optimizer=adam(0.02, weight_decay=0.01), clip_norm=0.3, accumulate=2, batch_size=2),
            more={"epochs": 2, "rate": 0.5, "seed": 3, "scores": 2},
        ),
        "momentum": Situation(
            task=perceptron(images(46), model=layered, batch_size=5, optimizer=sgd(0.1, momentum=0.9), rate=dropping),
            more={"epochs": 2},
        ),
        "continue": Situation(
            task=rich(), workers=3, several=True, more={"faults": death, "on_failure": "continue", "epochs": 2}
        ),
        "unclipped": Situation(
            task=replace(rich(), clip_norm=None), workers=3, several=True,
            more={"faults": death, "on_failure": "continue", "epochs": 2},
        ),
        "restart": Situation(
            task=rich(), workers=3, several=True,
            more={"faults": death, "on_failure": "restart", "epochs": 2, **keeping},
        ),
        "timed": Situation(
            task=rich(), cluster=HOSTS, workers=4, several=True, more={"timing_only": True, "epochs": 1}
        ),
        "alone": Situation(task=rich(), workers=1, several=True, more={"epochs": 2}),
    }  # fmt: skip


def dropping(progress: float) -> float:
    """A rate that drops at once, as many do."""
    return 1.0 if progress < 0.5 else 0.1
