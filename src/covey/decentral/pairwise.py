"""AD-PSGD: average with one random neighbour at a time, while the gradient is computed."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import partial

from covey.decentral.parting import leave, part, see_off
from covey.message import Address, Message
from covey.program import Memory, Node
from covey.replica import Replica
from covey.strategy import GROW, Role, Strategy, Taxonomy
from covey.topology import Graph
from covey.vector import Vector


class Meet(Message):
    """An active worker's model, to be averaged with."""

    model: Vector


class Move(Message):
    """Half of the difference between both models: by so much the passive worker came, and the active one must go."""

    half: Vector


async def active(node: Node, replica: Replica, *, neighbours: Collection[int]) -> None:
    """Meet one random passive neighbour a step, unless the last meeting still goes on; never wait for it."""
    asked, moved = node.remember(0), node.remember(0)
    model = shielded(replica)
    await node.spawn(mover(node, model, moved))
    for _ in node.steps():
        if neighbours and asked.value == moved.value:
            await node.send(Address("worker", node.rng.choice(sorted(neighbours))), Meet(model))
            asked.value += 1
        await step(node, replica, moved)
    await part(node, neighbours, neighbours)  # their goodbye comes after their last answer


async def passive(node: Node, replica: Replica, *, neighbours: Collection[int]) -> None:
    """Step on one's own, and answer whoever asks, whenever that is."""
    met = node.remember(0)
    model = shielded(replica)
    await node.spawn(answerer(node, model, met))
    for _ in node.steps():
        await step(node, replica, met)
    await see_off(node, neighbours)  # from here on nobody will ask any more
    await leave(node, neighbours)


async def step(node: Node, replica: Replica, meetings: Memory[int]) -> None:
    """The gradient belongs to the weights of its beginning, and moves the weights of its end."""
    before = meetings.value
    grad = await replica.gradient(node)
    await node.note("staleness", meetings.value - before)
    replica.apply(grad)
    await node.note("update")


async def mover(node: Node, model: Vector, moved: Memory[int]) -> None:
    """Take each answer in the moment it comes. A gradient that was applied meanwhile stays: only the half is added."""
    while True:
        move = await node.receive(Move)
        model.add_(move.half, alpha=-1)
        moved.value += 1


async def answerer(node: Node, model: Vector, met: Memory[int]) -> None:
    """Come half of the way, and tell the other the very same half: so their sum stays, whatever happens meanwhile."""
    while True:
        meet = await node.receive(Meet)
        half = (meet.model - model) * 0.5
        model.add_(half)
        met.value += 1
        await node.send(meet.sender, Move(half), loan=True)


def shielded(replica: Replica) -> Vector:
    """The model, for a companion to write while backward runs on a copy of the weights."""
    replica.shield()
    return replica.model.map(lambda part: part.data)  # float buffers have no copy: autograd must not see the writing


@dataclass(frozen=True, kw_only=True, slots=True)
class Adpsgd:
    """Average with one random neighbour at a time, while the gradient is computed: nobody waits (Lian et al. 2018)."""

    def strategy(self, workers: int, graph: Graph, over: str) -> Strategy:
        graph.check_mutual()
        side, _ = graph.sides()  # two workers that ask each other at once would wait for each other for ever

        def roles(workers: int, servers: int) -> list[Role]:
            return [
                Role(
                    Address("worker", rank),
                    partial(active if rank in side else passive, neighbours=graph.neighbours(rank)),
                    trains=True, scored=True,
                )
                for rank in range(workers)
            ]  # fmt: skip

        return Strategy(
            name="adpsgd", settings={}, roles=roles, over=over, scored="the mean of the workers' models",
            rate="unchanged: each worker's own", scaling=GROW,
            taxonomy=Taxonomy(
                optimization="decentral", architecture="peers", scheduling="asynchronous", exchange="pairwise",
                topology="two sides" if over == "bipartite" else over,
            ),
        )  # fmt: skip
