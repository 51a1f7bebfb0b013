"""GoSGD: now and then a worker gives half of its weight, with its model, to a random peer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial

from covey.decentral.gossip.gossip_lists import Contents
from covey.decentral.gossip.leased_gossip import GossipLeases
from covey.decentral.peer_membership import PeerMembership
from covey.errors import PlanError
from covey.exchange.codec import Codec, dense
from covey.exchange.differences import model_gaps, model_wires, refuse_lagging
from covey.message import Address, Message
from covey.model.replica import Replica
from covey.program import Node
from covey.servers.goodbye import Goodbye
from covey.strategy import Description, Role, Strategy, Taxonomy
from covey.topology import Graph
from covey.vector import Vector


class Gossip(Message):
    """A model and the weight that travels with it."""

    wire_name = "gossip.gossip"

    model: Vector
    weight: float


class CountedGossip(Message):
    """The same where workers come and go, and which batches the model contains."""

    wire_name = "gossip.counted"

    model: Vector
    weight: float
    contains: Contents


class GossipLinks:
    """How gossip travels: the model, or what has changed since this peer last heard it; its weight is a number."""

    def __init__(self, node: Node, replica: Replica, codec: Codec) -> None:
        self.replica = replica
        self.weight = node.remember("weight", 0.0 if node.incarnation.number else 1 / node.workers)
        replica.weigh(self.weight.value)
        self.gaps = model_gaps(node, replica, codec)
        self.told = model_wires(node, replica, codec, "told", "gossip")

    def give(self, peer: int) -> Gossip:
        """Half of one's weight goes with it."""
        self.weight.value = self.weight.value / 2
        self.replica.weigh(self.weight.value)
        return Gossip(self.told.tell(self.replica.model, peer), self.weight.value)

    def take_in(self, gossip: Gossip | CountedGossip) -> None:
        """Move to the weighted mean of both models, or as far towards it as can be known.

        The weights add up, so that none is lost.
        """
        total = self.weight.value + gossip.weight
        self.gaps.follow(gossip.model, gossip.weight / total, gossip.sender.rank)
        self.weight.value = total
        self.replica.weigh(total)

    def take_in_all(self, node: Node) -> None:
        while gossip := node.receive_nowait(Gossip):
            self.take_in(gossip)


async def worker(node: Node, replica: Replica, *, probability: float, graph: Graph, codec: Codec) -> None:
    """Take in all gossip that waits, step, and sometimes pass half of one's weight on (Blot et al. 2016)."""
    if node.incarnation.leased:
        return await leased_worker(node, replica, probability=probability, graph=graph, codec=codec)
    talk, near = GossipLinks(node, replica, codec), graph.neighbours(node.rank)
    members, gone = PeerMembership(node, replica, near, talk.weight), set[int]()
    for _ in node.steps() if await members.enter() else ():
        talk.take_in_all(node)  # all of it, or the queue of a slow worker grows without bound
        await members.look()
        gone = members.through if members.elastic else gone  # one that was restarted is there again
        while leaving := node.receive_nowait(Goodbye):
            gone.add(leaving.sender.rank)
        replica.apply(await replica.gradient(node))
        await node.note("update")
        # one that has not taken what it was given gets no more: nobody waits for it, and no weight is lost on the way
        peers = [peer for peer in near if peer not in gone]
        ready = [peer for peer in peers if node.room(Address("worker", peer))]
        if peers and node.rng.random() < probability and ready:
            peer = node.rng.choice(ready)
            await node.send(Address("worker", peer), talk.give(peer))
    if members.elastic:
        await members.part()  # their farewells come after their last gossip
        talk.take_in_all(node)
    else:
        await part(node, talk, {*near} - gone, near)


async def leased_worker(node: Node, replica: Replica, *, probability: float, graph: Graph, codec: Codec) -> None:
    """The same, among those that are there: with the model goes what it contains."""
    talk = GossipLinks(node, replica, codec)

    def take_in_all() -> None:
        while gossip := node.receive_nowait(CountedGossip):
            talk.take_in(gossip)
            leases.took_in(gossip.sender, gossip.contains)

    leases = GossipLeases(node, replica, take_in_all, talk.weight)
    going = await leases.begin_here()
    while going:
        while (lease := await leases.lease()) and node.training():
            take_in_all()
            replica.apply(await leases.gradient(lease))
            leases.did()
            await node.note("update")
            peers = set(leases.among(graph).neighbours(node.rank)) - leases.through
            ready = [peer for peer in sorted(peers) if node.room(Address("worker", peer))]
            if peers and node.rng.random() < probability and ready:
                peer = node.rng.choice(ready)
                given = talk.give(peer)
                told = CountedGossip(given.model, given.weight, leases.contains())
                await node.send(Address("worker", peer), told)
        going = not await leases.part_from_all()


async def part(node: Node, talk: GossipLinks, peers: set[int], near: Sequence[int]) -> None:
    """Say farewell, and take in what still travels, until every peer has said farewell too."""
    await node.broadcast([Address("worker", rank) for rank in near], Goodbye())
    while peers:
        message = await node.receive_any(Gossip, Goodbye)
        if isinstance(message, Gossip):
            talk.take_in(message)
        else:
            peers.discard(message.sender.rank)
    talk.take_in_all(node)


@dataclass(frozen=True, kw_only=True, slots=True)
class Gosgd:
    """Gossip: after a step, with `probability`, give half of one's weight and the model to a random peer."""

    probability: float = 0.1

    def strategy(self, workers: int, graph: Graph, over: str, codec: Codec = dense) -> Strategy:
        graph.check_mutual()
        refuse_lagging(codec)
        if not 0 < self.probability <= 1:
            raise PlanError(f"gosgd(probability={self.probability}): must lie in (0, 1]; 0 would mean no collaboration")

        def roles(workers: int, servers: int) -> list[Role]:
            work = partial(worker, probability=self.probability, graph=graph, codec=codec)
            return [Role(Address("worker", rank), work, trains=True, scored=True) for rank in range(workers)]

        return Strategy(
            name="gosgd", settings=asdict(self), roles=roles,
            description=Description(
                scored="the mean of the workers' models, by their weights", rate="unchanged: each worker's own",
            ),
            taxonomy=Taxonomy(
                optimization="decentral", architecture="peers", scheduling="soft", exchange="ad hoc",
                topology="peer-to-peer mesh" if over == "complete" else over,
            ),
        )  # fmt: skip
