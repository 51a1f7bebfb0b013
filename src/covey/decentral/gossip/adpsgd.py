"""AD-PSGD: average with one random neighbour at a time, while the gradient is computed."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import partial

from covey.decentral.gossip.gossip_lists import Contents
from covey.decentral.gossip.leased_gossip import GossipLeases
from covey.decentral.leaving import leave, part, see_off
from covey.decentral.peer_membership import PeerMembership
from covey.errors import PlanError
from covey.exchange.codec import Codec, dense
from covey.exchange.differences import model_coder, model_gaps, model_wires, refuse_lagging
from covey.membership import Joined
from covey.message import Address, Message
from covey.model.replica import Replica
from covey.program import Memory, Node
from covey.strategy import GROW, Description, Role, Strategy, Taxonomy
from covey.topology import Graph, bipartite
from covey.vector import Vector


class Meet(Message):
    """An active worker's model, to be averaged with."""

    wire_name = "pairwise.meet"

    model: Vector


class HalfDifference(Message):
    """Half of the difference between both models: by this much the passive worker came, and the active one must go."""

    wire_name = "pairwise.move"

    half: Vector


class CountedMeet(Message):
    """The same where workers come and go: which list the sender has, and which batches its model contains."""

    wire_name = "pairwise.counted_meet"

    model: Vector
    version: int
    contains: Contents


class CountedHalf(Message):
    """The answer to that."""

    wire_name = "pairwise.counted_move"

    half: Vector
    version: int
    contains: Contents


class Meetings:
    """How models travel to a meeting, and halves back: as they are, or as a codec writes what has changed.

    Both sides move by what became of the half on its way: what it lacks is still between them next time.
    """

    def __init__(self, node: Node, replica: Replica, model: Vector, codec: Codec) -> None:
        self.model, coder = model, model_coder(node, replica, codec, "meet")
        self.coder, self.memory = coder, node.remember("codec", coder.memory)
        self.told = model_wires(node, replica, codec, "told", "meet", model)
        self.gaps = model_gaps(node, replica, codec, model)
        self.open: int | None = None  # with whom, as far as this incarnation knows

    def meet(self, peer: int) -> Meet:
        return Meet(self.told.tell(self.model, peer))

    def move(self, meet: Meet | CountedMeet) -> HalfDifference:
        """Come half of the way."""
        gap = self.gaps.hear(meet.model, meet.sender.rank)
        wire, self.memory.value = self.coder.encode(gap.mul_(0.5), self.memory.value)
        self.model.add_(self.coder.decode(wire))
        return HalfDifference(wire)

    def go(self, move: HalfDifference | CountedHalf) -> None:
        """Go as far as the other came."""
        self.model.add_(self.coder.decode(move.half), alpha=-1)


async def worker(node: Node, replica: Replica, *, graph: Graph, side: Collection[int], codec: Codec) -> None:
    """Ask, on one side of the graph, or answer on the other; where workers come and go, each may do both."""
    neighbours = graph.neighbours(node.rank)
    if node.incarnation.leased:
        await leased_worker(node, replica, graph=graph, codec=codec)
    elif node.rank in side:
        await active(node, replica, neighbours=neighbours, codec=codec)
    else:
        await passive(node, replica, neighbours=neighbours, active=side, codec=codec)


async def active(node: Node, replica: Replica, *, neighbours: Collection[int], codec: Codec) -> None:
    """Meet one random passive neighbour a step, unless the last meeting still goes on; never wait for it."""
    asked, moved = node.remember("asked", 0), node.remember("moved", 0)
    meetings = Meetings(node, replica, shielded(replica), codec)

    async def drop(rank: int) -> None:
        """This passive worker was lost. The meeting with it is over: this one has not moved, the other is gone."""
        if meetings.open == rank:
            meetings.open = None
            asked.value -= 1

    peers = PeerMembership(node, replica, sorted(neighbours), restarted=drop)
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
    peers = PeerMembership(node, replica, sorted(neighbours))
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
    node: Node, meetings: Meetings, asked: Memory[int], moved: Memory[int], peers: PeerMembership
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


async def answerer(node: Node, meetings: Meetings, met: Memory[int], peers: PeerMembership) -> None:
    """Come half of the way, and tell the other the very same half: so their sum stays, whatever happens meanwhile."""
    while True:
        meet = await node.receive_any(Meet, *peers.asks)
        if not isinstance(meet, Meet):
            await peers.hear(meet)
            continue
        if peers.elastic and (joined := node.receive_nowait(Joined, sender=meet.sender)):
            await peers.hear(joined)  # an earlier incarnation asked, which cannot come the other half
            continue
        half = meetings.move(meet)
        met.value += 1
        await node.send(meet.sender, half, loan=True)


class LeasedMeetings(Meetings):
    """Meetings of workers that come and go; who asks and who answers changes with those that are there."""

    def __init__(self, node: Node, replica: Replica, codec: Codec) -> None:
        super().__init__(node, replica, shielded(replica), codec)
        self.node, self.count = node, Memory(0)
        self.leases = GossipLeases(node, replica, self.take_in)
        self.asked: tuple[int, int] | None = None  # with whom a meeting still goes on, and in which incarnation
        self.entered = 0  # the version of the list with which this incarnation began

    def take_in(self) -> None:
        while word := self.node.receive_nowait(CountedMeet, CountedHalf):
            assert isinstance(word, CountedMeet | CountedHalf)
            if answer := self.hear(word):
                self.leases.answers.append((word.sender, answer))

    def hear(self, word: CountedMeet | CountedHalf) -> CountedHalf | None:
        """Come half of the way, which the other is told; or go the half that the other came."""
        if isinstance(word, CountedMeet):
            half = self.move(word).half
            self.leases.took_in(word.sender, word.contains)
            self.count.value += 1
            return CountedHalf(half, word.version, self.leases.contains())
        if word.version < self.entered:
            return None  # an earlier incarnation asked
        self.go(word)
        self.leases.took_in(word.sender, word.contains)
        self.count.value += 1
        if self.asked is not None and self.asked[0] == word.sender.rank:
            self.asked = None
        return None

    async def answerer(self) -> None:
        """Hear each word in the moment it comes."""
        while True:
            word = await self.node.receive_any(CountedMeet, CountedHalf)
            assert isinstance(word, CountedMeet | CountedHalf)
            if answer := self.hear(word):
                await self.node.send(word.sender, answer, loan=True)

    async def ask(self, graph: Graph) -> None:
        """Meet a random neighbour, if this worker is on the side that asks, and no meeting of its own goes on."""
        leases, rank = self.leases, self.node.rank
        if self.asked is not None and leases.listed[self.asked[0]] != self.asked[1]:
            self.asked = None  # the other is gone, and this one has not moved
        among = two_sided(leases.among(graph))
        near = among.neighbours(rank)
        if near and self.asked is None and rank in among.sides()[0]:
            peer = self.node.rng.choice(near)
            self.asked = peer, leases.listed[peer]
            meet = CountedMeet(self.meet(peer).model, leases.version, leases.contains())
            await self.node.send(Address("worker", peer), meet)


async def leased_worker(node: Node, replica: Replica, *, graph: Graph, codec: Codec) -> None:
    """Step on batches that are leased, meet somebody on the other side, and answer whoever asks."""
    meetings = LeasedMeetings(node, replica, codec)
    leases = meetings.leases
    going = await leases.begin_here()
    meetings.entered = leases.version if node.incarnation.number else 0
    await node.spawn(meetings.answerer())
    while going:
        while (lease := await leases.lease()) and node.training():
            await meetings.ask(graph)
            before = meetings.count.value
            grad = await leases.gradient(lease)
            await node.note("staleness", meetings.count.value - before)
            replica.apply(grad)
            leases.did()
            await node.note("update")
        going = not await leases.part_from_all()


def two_sided(graph: Graph) -> Graph:
    """The graph if it has two sides; else one of the same ranks that has."""
    try:
        graph.sides()
    except PlanError:
        return bipartite(graph.size).seated(graph.ranks)
    return graph


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
            work = partial(worker, graph=graph, side=side, codec=codec)
            return [Role(Address("worker", rank), work, trains=True, scored=True) for rank in range(workers)]

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
