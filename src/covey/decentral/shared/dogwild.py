"""Dogwild: machines train on their own, and send each other blocks over lossy links."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial

from covey.decentral.leaving import addresses, part
from covey.decentral.shared.hogwild import (
    Momentum,
    WorkerGroups,
    forbid_momentum,
    grouped,
    herding,
    settle,
    step,
    train,
)
from covey.errors import PlanError
from covey.message import Message
from covey.model.replica import Replica
from covey.program import Node
from covey.strategy import Strategy, Taxonomy
from covey.vector import Piece, Vector, chunks


class VectorBlock(Message):
    """What one block of a machine's vector holds."""

    wire_name = "dogwild.block"

    index: int
    values: Vector


async def machine(
    node: Node, replica: Replica, *, groups: WorkerGroups, blocks: int, mix: float, momentum: Momentum
) -> None:
    """Hogwild inside; outside, one block a step to every other machine, which may be lost (Noel & Osindero 2014)."""
    members = groups.members(groups.group(node.rank))
    if len(members) > 1:
        forbid_momentum(replica, momentum)
        await settle(node, replica, groups.group(node.rank), members)
    if node.rank != members[0]:
        return await train(node, replica)
    others, pieces = [rank for rank in groups.leaders() if rank != node.rank], chunks(replica.flat, blocks)
    replica.shield()
    await node.spawn(listener(node, replica.flat, pieces, mix))
    for number in node.steps():
        await step(node, replica)
        block = VectorBlock(number % blocks, replica.flat.cut(pieces[number % blocks]))
        for peer in addresses(others):
            await node.send(peer, block, lossy=True)
    await part(node, others, others)


async def listener(node: Node, flat: Vector, pieces: Sequence[Piece], mix: float) -> None:
    """Come towards each block that arrives, whichever it is: none depends on an earlier one."""
    while True:
        block = await node.receive(VectorBlock)
        flat.cut(pieces[block.index]).lerp_(block.values, mix)


@dataclass(frozen=True, kw_only=True, slots=True)
class Dogwild:
    """Machines train on their own and ship each other blocks of weights, which may get lost (Noel & Osindero 2014)."""

    machines: int | None = None  # as many as workers; with fewer, each is a Hogwild of neighbouring workers
    blocks: int = 4
    mix: float = 0.5  # how far a block moves its receiver
    momentum: Momentum = "refuse"

    def strategy(self, workers: int) -> Strategy:
        groups = grouped("dogwild", "machines", workers if self.machines is None else self.machines, workers)
        if self.blocks < 1 or not 0 < self.mix <= 1:
            raise PlanError("dogwild: blocks must be 1 or more, and mix lie in (0, 1]")
        program = partial(machine, groups=groups, blocks=self.blocks, mix=self.mix, momentum=self.momentum)
        return herding(
            "dogwild", {**asdict(self), "machines": groups.groups}, program, groups,
            scored="the mean of the workers' vectors", rate="unchanged: each machine's own",
            taxonomy=Taxonomy(
                optimization="decentral", architecture="peers", scheduling="asynchronous", exchange="lossy blocks",
                topology="peer-to-peer mesh",
            ),
        )  # fmt: skip
