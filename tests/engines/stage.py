"""A small stage for the virtual engine: two or three workers, round numbers, and something to say."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from covey.engines.virtual import VirtualEngine, VirtualOutcome
from covey.engines.virtual.run_faults import VirtualAttempt
from covey.message import Address, Message
from covey.model.batches import Batch, BatchSource
from covey.model.replica import Replica
from covey.model.scored import Snapshot
from covey.observe.instruments import Instrument
from covey.observe.referee import Referee
from covey.program import Node
from covey.simulate import BytesPerSecond, Cluster, Link, Seconds
from covey.strategy import Plan, Role, workers
from covey.vector import Vector

ME, YOU, THIRD = workers(3)
SERVER = Address("server", 0)

# A thousand bytes take a millisecond, and another one to travel; a batch takes 20 of them.
LINK = Link(bandwidth=BytesPerSecond(1e6), latency=Seconds(0.001))
CLUSTER = Cluster(compute=Seconds(0.02), link=LINK)

Program = Callable[[Node, Replica], Coroutine[Any, Any, None]]


class Ping(Message):
    wire_name = "test.stage.ping"

    step: int
    load: Vector


class Pong(Message):
    wire_name = "test.stage.pong"

    step: int


class Word(Message):
    wire_name = "test.stage.word"

    text: str


def ping(step: int = 0, size: int = 1000) -> Ping:
    return Ping(step, Vector([torch.full((size // 4,), float(step))]))


def replica(source: Callable[[int], Batch] | None = None) -> Replica:
    return Replica(
        nn.Linear(2, 1), lambda pairs: torch.optim.SGD([p for _, p in pairs], lr=0.1), BatchSource(own=source)
    )


def run(
    *programs: Program, cluster: Cluster = CLUSTER, watch: Sequence[Instrument] = (), referee: Referee | None = None,
    score: Callable[[Sequence[Snapshot]], Mapping[str, float]] | None = None, replicas: Sequence[Replica] = (),
    limit: int | None = 1, attempt: VirtualAttempt | None = None, formulas_from: int | None = None, **settings: Any,
) -> VirtualOutcome:  # fmt: skip
    """Run the programs as workers 0, 1, 2…"""
    addresses = workers(len(programs))
    roles = tuple(
        Role(address, program, trains=True, scored=True) for address, program in zip(addresses, programs, strict=True)
    )
    plan = Plan(roles=roles, limits=(limit,) * len(programs), **{"lockstep": False, **settings})
    given = dict(zip(addresses, replicas or [replica() for _ in programs], strict=True))
    return VirtualEngine(
        plan, given, cluster, watch, referee or Referee(10**9), score, formulas_from=formulas_from, attempt=attempt
    ).run()  # fmt: skip


class Log(list[Any]):
    """What programs write down, each with its virtual time."""

    async def at(self, node: Node, what: Any = "") -> None:
        self.append((round(await node.now(), 6), what))


async def idle(node: Node, replica: Replica) -> None:
    pass
