"""AD-PSGD: average with one random neighbour at a time, while the gradient is computed."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import partial

from covey.decentral.leaving import leave, part, see_off
from covey.exchange.codec import Codec, dense
from covey.exchange.differences import model_coder, model_gaps, model_wires, refuse_lagging
from covey.message import Address, Message
from covey.model.replica import Replica
from covey.program import Memory, Node
from covey.strategy import GROW, Description, Role, Strategy, Taxonomy
from covey.topology import Graph
from covey.vector import Vector


class Meet(Message):
    """An active worker's model, to be averaged with."""

    wire_name = "pairwise.meet"

    model: Vector


class HalfDifference(Message):
    """Half of the difference between both models: by so much the passive worker came, and the active one must go."""

    wire_name = "pairwise.move"

    half: Vector


class Meetings:
    """How models travel to a meeting, and halves back: as they are, or as a codec writes what has changed.

    Both sides move by what became of the half on its way: what it lacks is still between them next time.
    """

    def __init__(self, node: Node, replica: Replica, model: Vector, codec: Codec) -> None:
        self.model, coder = model, model_coder(node, replica, codec, "meet")
        self.coder, self.memory = coder, node.remember("codec", coder.memory)
        self.told = model_wires(node, replica, codec, "told", "meet", model)
        self.gaps = model_gaps(node, replica, codec, model)

    def meet(self, peer: int) -> Meet:
        return Meet(self.told.tell(self.model, peer))

    def move(self, meet: Meet) -> HalfDifference:
        """Come half of the way."""
        gap = self.gaps.hear(meet.model, meet.sender.rank)
        wire, self.memory.value = self.coder.encode(gap.mul_(0.5), self.memory.value)
        self.model.add_(self.coder.decode(wire))
        return HalfDifference(wire)

    def go(self, move: HalfDifference) -> None:
        """Go as far as the other came."""
        self.model.add_(self.coder.decode(move.half), alpha=-1)


async def active(node: Node, replica: Replica, *, neighbours: Collection[int], codec: Codec) -> None:
    """Meet one random passive neighbour a step, unless the last meeting still goes on; never wait for it."""
    asked, moved = node.remember("asked", 0), node.remember("moved", 0)
    meetings = Meetings(node, replica, shielded(replica), codec)
    await node.spawn(mover(node, meetings, moved))
    for _ in node.steps():
        await node.save_point()  # before which no shadow may have moved
        if neighbours and asked.value == moved.value:
            peer = node.rng.choice(sorted(neighbours))
            await node.send(Address("worker", peer), meetings.meet(peer))
            asked.value += 1
        await step(node, replica, moved)
    await part(node, neighbours, neighbours)  # their goodbye comes after their last answer


async def passive(node: Node, replica: Replica, *, neighbours: Collection[int], codec: Codec) -> None:
    """Step on one's own, and answer whoever asks, whenever that is."""
    met = node.remember("met", 0)
    await node.spawn(answerer(node, Meetings(node, replica, shielded(replica), codec), met))
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


async def mover(node: Node, meetings: Meetings, moved: Memory[int]) -> None:
    """Take each answer in the moment it comes. A gradient that was applied meanwhile stays: only the half is added."""
    while True:
        meetings.go(await node.receive(HalfDifference))
        moved.value += 1


async def answerer(node: Node, meetings: Meetings, met: Memory[int]) -> None:
    """Come half of the way, and tell the other the very same half: so their sum stays, whatever happens meanwhile."""
    while True:
        meet = await node.receive(Meet)
        half = meetings.move(meet)
        met.value += 1
        await node.send(meet.sender, half, loan=True)


def shielded(replica: Replica) -> Vector:
    """The model, for a companion to write while backward runs on a copy of the weights."""
    replica.shield()
    return replica.model.map(lambda part: part.data)  # float buffers have no copy: autograd must not see the writing


@dataclass(frozen=True, kw_only=True, slots=True)
class Adpsgd:
    """Average with one random neighbour at a time, while the gradient is computed: nobody waits (Lian et al. 2018)."""

    def strategy(self, workers: int, graph: Graph, over: str, codec: Codec = dense) -> Strategy:
        graph.check_mutual()
        refuse_lagging(codec)
        side, _ = graph.sides()  # two workers that ask each other at once would wait for each other for ever

        def roles(workers: int, servers: int) -> list[Role]:
            return [
                Role(
                    Address("worker", rank),
                    partial(active if rank in side else passive, neighbours=graph.neighbours(rank), codec=codec),
                    trains=True, scored=True,
                )
                for rank in range(workers)
            ]  # fmt: skip

        return Strategy(
            name="adpsgd", settings={}, roles=roles,
            description=Description(
                scored="the mean of the workers' models", rate="unchanged: each worker's own", scaling=GROW,
            ),
            taxonomy=Taxonomy(
                optimization="decentral", architecture="peers", scheduling="asynchronous", exchange="pairwise",
                topology="two sides" if over == "bipartite" else over,
            ),
        )  # fmt: skip
