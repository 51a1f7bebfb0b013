"""Small worlds to train in: tasks that can be worked out by hand, and runs whose replicas can be looked at."""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from covey.data.shards import Shards
from covey.engines.virtual import VirtualEngine, VirtualOutcome
from covey.message import Address, Message
from covey.model import build
from covey.model.optimizers import MakeOptimizer
from covey.model.replica import Replica
from covey.model.scored import ScoredModel
from covey.model.threads import one_thread
from covey.observe.instruments import Instrument
from covey.observe.referee import Referee
from covey.observe.trace import Trace
from covey.program import Node
from covey.run.options import options
from covey.run.request import request
from covey.simulate import BytesPerSecond, Cluster, Link, Seconds
from covey.strategy import Plan, Role, workers
from covey.task import Task
from covey.vector import Vector

MASTER = Address("master", 0)

# A batch takes 10 ms, a thousand bytes 1 ms on the wire and nothing to travel.
CLUSTER = Cluster(compute=Seconds(0.010), link=Link(bandwidth=BytesPerSecond(1e6), latency=Seconds(0.0)))

# Messages are there when they leave: only compute takes time.
INSTANT = Cluster(compute=Seconds(0.010), link=Link(bandwidth=BytesPerSecond(math.inf), latency=Seconds(0.0)))


def worker(rank: int) -> Address:
    return Address("worker", rank)


def server(rank: int) -> Address:
    return Address("server", rank)


# -- tasks ------------------------------------------------------------------------------------------------------------


class Point(nn.Module):
    """A model that is nothing but numbers."""

    def __init__(self, size: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(size, dtype=dtype))


def quadratic(
    size: int = 5, samples: int = 64, batch_size: int = 4, lr: float = 0.1, dtype: torch.dtype = torch.float64
) -> Task:
    """Find the middle of a cloud: the gradient of a batch is w minus the batch's mean."""
    cloud = torch.randn(samples, size, dtype=dtype, generator=torch.Generator().manual_seed(1))
    return Task(
        model=lambda: Point(size, dtype), data=(cloud,), optimizer=lambda pairs: torch.optim.SGD(pairs, lr=lr),
        step=lambda model, batch: 0.5 * (model.w - batch[0]).square().sum(1).mean(), batch_size=batch_size,
    )  # fmt: skip


def middle(task: Task, deal: Shards, rank: int, step: int) -> Tensor:
    """The mean of a worker's batch: what its gradient of `quadratic` points away from."""
    assert isinstance(task.data, tuple)
    return task.data[0][deal.indices(rank, step)].mean(0)


def sgd(lr: float = 0.1, **more: Any) -> MakeOptimizer:
    return lambda pairs: torch.optim.SGD(pairs, lr=lr, **more)


def adam(lr: float = 0.01, **more: Any) -> MakeOptimizer:
    return lambda pairs: torch.optim.Adam(pairs, lr=lr, **more)


def cloud(samples: int, inputs: int = 6, classes: int = 3, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Points and the class of each."""
    chance = torch.Generator().manual_seed(2)
    x = torch.randn(samples, inputs, dtype=dtype, generator=chance)
    return x, (x @ torch.randn(inputs, classes, dtype=dtype, generator=chance)).argmax(1)


def mlp(optimizer: MakeOptimizer | None = None, samples: int = 128, **more: Any) -> Task:
    """A small network in float64, so that only the order of additions can make a difference."""
    given: dict[str, Any] = {
        "model": lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double(),
        "data": cloud(samples), "optimizer": optimizer or sgd(), "loss": nn.functional.cross_entropy, "batch_size": 8,
    }  # fmt: skip
    return Task(**(given | more))


def alone(task: Task, steps: int, batch_size: int, seed: int = 0) -> dict[str, Tensor]:
    """One process and a plain PyTorch loop: what strategies are held to."""
    with one_thread():
        return _alone(task, steps, batch_size, seed)


def _alone(task: Task, steps: int, batch_size: int, seed: int) -> dict[str, Tensor]:
    assert isinstance(task.data, tuple)
    module = build.model(task, seed)
    optimizer = task.optimizer(iter(list(module.named_parameters())))
    rates = [group["lr"] for group in optimizer.param_groups]
    deal = Shards(len(task.data[0]), 1, batch_size, seed)
    sizes = [len(deal.indices(0, step)) for step in range(steps)]
    for step in range(steps):
        batch = tuple(column[deal.indices(0, step)] for column in task.data)
        optimizer.zero_grad()
        task.forward(module, batch).backward()
        if task.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(module.parameters(), task.clip_norm)
        factor = task.rate(sum(sizes[:step]) / sum(sizes)) if task.rate else 1.0
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * factor
        optimizer.step()
    return {name: tensor.detach() for name, tensor in module.state_dict().items()}


# -- runs -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class World:
    """A run in virtual time that is over, and everything in it."""

    outcome: VirtualOutcome
    replicas: dict[Address, Replica]
    deal: Shards
    scored: dict[str, Tensor]
    trace: str
    log: Recorder

    def flat(self, who: Address) -> Tensor:
        """All parameters of a role in one tensor."""
        return torch.cat([part.double() for part in self.replicas[who].flat.parts])

    def workers(self) -> list[Replica]:
        return [replica for who, replica in self.replicas.items() if who.role == "worker"]


def run(
    task: Task, strategy: str | Any, workers: int = 4, *, cluster: Cluster = CLUSTER, watch: Sequence[Instrument] = (),
    before: Callable[[dict[Address, Replica]], None] = lambda replicas: None, **given: Any,
) -> World:  # fmt: skip
    """Train in virtual time as `covey.fit` does; `before` may change the replicas before the first step."""
    asked = request(task, strategy, workers, options({"engine": "simulated", **given}))
    replicas = {
        role.address: build.replica(task, role.address, role.trains, asked.deal, asked.budget, role.part)
        for role in asked.plan.roles
    }
    before(replicas)
    trace, log = Trace(), Recorder()
    score = ScoredModel(build.model(task, asked.options.training.seed), task.evaluate)
    referee = Referee(asked.deal.samples, asked.target)
    engine = VirtualEngine(
        asked.plan, replicas, cluster, [trace, log, *watch], referee, score.score if task.evaluate else None
    )
    with one_thread():
        outcome = engine.run()
    score.assemble(outcome.snapshots)
    return World(
        outcome=outcome, replicas=replicas, deal=asked.deal, scored=score.state(), trace=trace.text(), log=log
    )  # fmt: skip


Program = Callable[[Node, Replica], Coroutine[Any, Any, None]]


def perform(
    *programs: Program, replicas: Sequence[Replica] = (), cluster: Cluster = CLUSTER, steps: int | None = 1,
    watch: Sequence[Instrument] = (),
) -> Recorder:  # fmt: skip
    """Run hand-written programs as workers 0, 1, 2…"""
    addresses, log = workers(len(programs)), Recorder()
    roles = tuple(
        Role(address, program, trains=True, scored=True) for address, program in zip(addresses, programs, strict=True)
    )
    given = dict(zip(addresses, replicas or [Replica(Point(1, torch.float64), sgd()) for _ in programs], strict=True))
    plan = Plan(roles=roles, limits=(steps,) * len(programs), lockstep=False)
    VirtualEngine(plan, given, cluster, [log, *watch], Referee(10**9)).run()
    return log


def slowed(cluster: Cluster = CLUSTER, **factors: float) -> Cluster:
    """The cluster with some workers slower: slowed(w2=4)."""
    return replace(cluster, slowdowns={int(name.removeprefix("w")): factor for name, factor in factors.items()})


def paced(slow: Sequence[float], jitter: float = 0.0) -> Cluster:
    """The cluster whose worker r is slow[r] times as slow."""
    return replace(CLUSTER, slowdowns=dict(enumerate(slow)), jitter=jitter)


def spread(scale: float = 1.0) -> Callable[[dict[Address, Replica]], None]:
    """Put every replica somewhere else before the first step."""

    def before(replicas: dict[Address, Replica]) -> None:
        chance = torch.Generator().manual_seed(3)
        for replica in replicas.values():
            for part in replica.flat.parts:
                part.add_(torch.randn(part.shape, dtype=part.dtype, generator=chance), alpha=scale)

    return before


# -- watching ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sent:
    at: float
    sender: Address
    to: Address
    message: Message
    size: int


@dataclass(frozen=True)
class Noted:
    at: float
    who: Address
    kind: str
    value: float


@dataclass(frozen=True)
class Waited:
    begin: float
    end: float
    who: Address
    what: str


class Recorder(Instrument):
    """Keeps what happened, as lists."""

    def __init__(self) -> None:
        self.sends: list[Sent] = []
        self.deliveries: list[Sent] = []
        self.notes: list[Noted] = []
        self.waits: list[Waited] = []
        self.computes: list[tuple[float, float, Address]] = []
        self.ends: list[Address] = []

    def sent(self, at: float, sender: Address, to: Address, message: Message, size: int) -> None:
        self.sends.append(Sent(at, sender, to, message, size))

    def delivered(self, at: float, sender: Address, to: Address, message: Message, size: int) -> None:
        self.deliveries.append(Sent(at, sender, to, message, size))

    def computed(self, begin: float, end: float, who: Address) -> None:
        self.computes.append((begin, end, who))

    def waited(self, begin: float, end: float, who: Address, what: str, wire: float = 0.0) -> None:
        self.waits.append(Waited(begin, end, who, what))

    def noted(self, at: float, who: Address, kind: str, value: float) -> None:
        self.notes.append(Noted(at, who, kind, value))

    def ended(self, at: float, who: Address) -> None:
        self.ends.append(who)

    def values(self, kind: str, who: Address | None = None) -> list[float]:
        """What was noted under this name, in order."""
        return [note.value for note in self.notes if note.kind == kind and who in (None, note.who)]

    def kinds(self, kind: type[Message]) -> list[Sent]:
        """The messages of this kind, in the order of sending."""
        return [event for event in self.sends if type(event.message) is kind]

    def bytes_from(self, who: Address) -> int:
        return sum(event.size for event in self.sends if event.sender == who)


def vector(*numbers: float) -> Vector:
    """A vector of one part, float64."""
    return Vector([torch.tensor(numbers, dtype=torch.float64)])
