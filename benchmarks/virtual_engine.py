"""How many effects a second of CPU time does the virtual engine perform, when no model computes?"""

from __future__ import annotations

import json
import time
from typing import Any

import torch
from torch import nn

from covey.engines.virtual import VirtualEngine
from covey.message import Message
from covey.model.replica import Replica
from covey.observe.referee import Referee
from covey.program import Node
from covey.simulate import Cluster
from covey.strategy import Plan, Role, workers


class Rumour(Message):
    """A small message with nothing on it to copy."""

    wire_name = "benchmark.virtual_engine.rumour"

    step: int


async def gossip(node: Node, replica: Replica) -> None:
    """Compute, tell a neighbour, hear the other, and say so: five effects a step."""
    peers = workers(node.workers)
    onward, back = peers[(node.rank + 1) % len(peers)], peers[node.rank - 1]
    for step in node.steps():
        await node.compute(_nothing)
        await node.send(onward, Rumour(step))
        await node.receive(Rumour, sender=back, step=step)
        await node.now()
        await node.note("update")


async def ping_pong(node: Node, replica: Replica) -> None:
    """Pairs that answer each other: two effects a step, all of them messages."""
    peer = workers(node.workers)[node.rank ^ 1]
    for step in node.steps():
        await node.send(peer, Rumour(step))
        await node.receive(Rumour, sender=peer)


def _nothing() -> None:
    pass


def measure(roles: int = 16, steps: int = 2000) -> dict[str, Any]:
    """Effects per second of gossip (with compute and notes) and of ping-pong (messages only)."""
    return {
        "roles": roles,
        "gossip_effects_per_second": _rate(gossip, roles, steps, effects=5),
        "ping_pong_effects_per_second": _rate(ping_pong, roles, steps, effects=2),
    }


def _rate(program: Any, roles: int, steps: int, effects: int) -> int:
    replica = Replica(nn.Linear(1, 1), lambda pairs: torch.optim.SGD([p for _, p in pairs], lr=0.1))
    addresses = workers(roles)
    plan = Plan(
        roles=tuple(Role(address, program, trains=True) for address in addresses),
        limits=(steps,) * roles,
        lockstep=True,
    )
    engine = VirtualEngine(plan, dict.fromkeys(addresses, replica), Cluster(jitter=0.3), [], Referee(1))
    begin = time.process_time()
    engine.run()
    return round(roles * steps * effects / (time.process_time() - begin))


if __name__ == "__main__":
    print(json.dumps(measure(), indent=1))
