"""AD-PSGD: average with one random neighbour at a time, while the gradient is computed."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import partial

from covey.decentral.leaving import leave, part, see_off
from covey.decentral.peer_lives import PeerLives
from covey.exchange.codec import Codec, dense
from covey.exchange.differences import model_coder, model_gaps, model_wires, refuse_lagging
from covey.membership import Joined
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
    """Half of the difference between both models: by this much the passive worker came, and the active one must go."""

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
        self.open: int | None = None  # with whom, as far as this life knows

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

    async def drop(rank: int) -> None:
        """This passive worker was lost. The meeting with it is over: this one has not moved, the other is gone."""
        if meetings.open == rank:
            meetings.open = None
            asked.value -= 1

    peers = PeerLives(node, replica, sorted(neighbours), born=drop)
    going = await peers.enter()
    await node.spawn(mover(node, meetings, asked, moved, peers))
    for _ in node.steps() if going else ():
        await node.save_point()  # before which no shadow may have moved
        if neighbours and asked.value == moved.value:
            peer = meetings.open = node.rng.choice(sorted(neighbours))
            asked.value += 1
            await node.send(Address("worker", peer), meetings.meet(peer))
        await step(node, replica, moved)
    # their goodbye, and their farewell, comes after their last answer
    await (peers.part() if peers.elastic else part(node, neighbours, neighbours))


async def passive(
    node: Node, replica: Replica, *, neighbours: Collection[int], active: Collection[int], codec: Codec
) -> None:  # fmt: skip
    """Step on one's own, and answer whoever asks, whenever that is."""
    met = node.remember("met", 0)
    peers = PeerLives(node, replica, sorted(neighbours))
    going = await peers.enter()
    await node.spawn(answerer(node, Meetings(node, replica, shielded(replica), codec), met, peers))
    for _ in node.steps() if going else ():
        await step(node, replica, met)
    if peers.elastic:
        return await peers.part(after=active)
    await see_off(node, neighbours)  # from here on nobody will ask any more
    await leave(node, neighbours)


async def step(node: Node, replica: Replica, meetings: Memory[int]) -> None:
    """The gradient belongs to the weights of its beginning, and moves the weights of its end."""
    before = meetings.value
    grad = await replica.gradient(node)
    await node.note("staleness", meetings.value - before)
    replica.apply(grad)
    await node.note("update")


async def mover(
    node: Node, meetings: Meetings, asked: Memory[int], moved: Memory[int], peers: PeerLives
) -> None:  # fmt: skip
    """Take each answer in the moment it comes. A gradient that was applied meanwhile stays: only the half is added."""
    while True:
        word = await node.receive_any(HalfDifference, *peers.asks)
        if not isinstance(word, HalfDifference):
            await peers.hear(word)
            continue
        meetings.go(word)  # whatever meeting it is of: the other one has come as far
        if asked.value > moved.value and meetings.open in (None, word.sender.rank):
            moved.value += 1
            meetings.open = None


async def answerer(node: Node, meetings: Meetings, met: Memory[int], peers: PeerLives) -> None:
    """Come half of the way, and tell the other the very same half: so their sum stays, whatever happens meanwhile."""
    while True:
        meet = await node.receive_any(Meet, *peers.asks)
        if not isinstance(meet, Meet):
            await peers.hear(meet)
            continue
        if peers.elastic and (joined := node.receive_nowait(Joined, sender=meet.sender)):
            await peers.hear(joined)  # an earlier life asked, which cannot come the other half
            continue
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
            works = [active if rank in side else partial(passive, active=side) for rank in range(workers)]
            return [
                Role(
                    Address("worker", rank), partial(work, neighbours=graph.neighbours(rank), codec=codec),
                    trains=True, scored=True,
                )
                for rank, work in enumerate(works)
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
