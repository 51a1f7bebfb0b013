"""D-PSGD: mix with the neighbours of a graph while stepping on one's own gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from covey.decentral.gossip.gossip_lists import Contents
from covey.decentral.gossip.leased_gossip import GossipLeases
from covey.decentral.gossip.round_shares import RoundShares
from covey.decentral.leaving import addresses
from covey.decentral.step_shares import StepShares
from covey.exchange.codec import Codec, dense
from covey.exchange.differences import Shadows, gain, model_coder, refuse_lagging
from covey.message import Address, Message
from covey.model.replica import Replica
from covey.program import Node
from covey.strategy import GROW, Description, Role, Strategy, Taxonomy
from covey.topology import Graph
from covey.vector import Vector


class NeighbourModel(Message):
    """A worker's model before its step."""

    wire_name = "neighbours.share"

    step: int
    model: Vector


class CountedModel(Message):
    """The same where workers come and go, and which batches the model contains."""

    wire_name = "neighbours.counted_share"

    step: int
    model: Vector
    contains: Contents


class NeighbourMixing:
    """Models that are mixed as they are."""

    def __init__(self, node: Node, replica: Replica, codec: Codec) -> None:
        self.node, self.replica = node, replica

    async def share(self) -> Vector:
        """What neighbours are sent."""
        return self.replica.model

    def mix(self, graph: Graph, shares: Sequence[NeighbourModel | CountedModel]) -> None:
        """Replace the model by the graph's weighted mean of it and the neighbours' models, in rank order."""
        rank, model = self.node.rank, self.replica.model
        model.mul_(graph.weight(rank, rank))
        for share in shares:
            model.add_(share.model, alpha=graph.weight(rank, share.sender.rank))


class EncodedNeighbours(NeighbourMixing):
    """Models that travel as changes: shadows are mixed, one's own among them, so the mean of all stays.

    Koloskova et al. 2019 (CHOCO-SGD): w + gain * sum of weight * (their shadow - own shadow).
    """

    def __init__(self, node: Node, replica: Replica, codec: Codec) -> None:
        super().__init__(node, replica, codec)
        coder = model_coder(node, replica, codec, "share")
        self.own, self.theirs = (Shadows(node, name, coder, replica.model) for name in ("own", "theirs"))
        self.gain = gain(coder, replica.model, len(replica.flat.parts))

    async def share(self) -> Vector:
        await self.node.save_point()  # before which no shadow may have moved
        return self.own.tell(self.replica.model)

    def mix(self, graph: Graph, shares: Sequence[NeighbourModel | CountedModel]) -> None:
        rank, replica = self.node.rank, self.replica
        mine = Vector(self.own.of().parts[: len(replica.flat.parts)]).join(replica.buffers.clone())
        for came in shares:
            gap = self.theirs.hear(came.model, came.sender.rank) - mine
            replica.model.add_(gap, alpha=self.gain * graph.weight(rank, came.sender.rank))


async def worker(node: Node, replica: Replica, *, graph: Graph, codec: Codec) -> None:
    """The gradient is taken at the weights before mixing, and computed while the shares travel (Lian et al. 2017)."""
    if node.incarnation.leased:
        return await leased_worker(node, replica, graph=graph)
    models = codec.either(NeighbourMixing, EncodedNeighbours)(node, replica, codec)
    shares = StepShares(node, replica, NeighbourModel, graph.neighbours(node.rank))
    for step in node.steps() if await shares.enter() else ():
        mixing = among(graph, node.present(step))
        peers = mixing.neighbours(node.rank)
        await shares.broadcast(peers, step, NeighbourModel(step, await models.share()))
        grad = await replica.gradient(node)
        came = await shares.gather(peers, step)
        lost = {*peers} - {share.sender.rank for share in came}
        models.mix(mixing.without(lost) if lost else mixing, came)
        replica.apply(grad)
        await node.note("update")
    await shares.part()


async def leased_worker(node: Node, replica: Replica, *, graph: Graph) -> None:
    """The same on the graph of those that are there, with batches that are leased."""
    models = NeighbourMixing(node, replica, dense)
    shares = RoundShares(node, replica, CountedModel)
    leases = shares.leases
    going = await leases.begin_here()
    while going:
        while (lease := await leases.lease()) and node.training():
            mixing = among(leases.among(graph), leases.active())
            peers = mixing.neighbours(node.rank)
            await node.broadcast(addresses(peers), CountedModel(node.step, replica.model, leases.contains()))
            grad = await leases.gradient(lease)
            finish = partial(step_among, replica, leases, models, mixing, grad)
            await shares.conclude(peers, finish)
            await node.note("update")
        going = not await leases.part_from_all()


def step_among(
    replica: Replica, leases: GossipLeases, models: NeighbourMixing, mixing: Graph, grad: Vector,
    came: Sequence[CountedModel],
) -> None:  # fmt: skip
    """Mix with those whose models have come, and step."""
    senders = {share.sender.rank for share in came}
    models.mix(mixing.without(set(mixing.neighbours(leases.node.rank)) - senders), came)
    for share in came:
        leases.took_in(share.sender, share.contains)
    replica.apply(grad)
    leases.did()


def among(graph: Graph, present: Sequence[int]) -> Graph:
    """The graph without the workers that have ended; the weight they had stays with their neighbours themselves."""
    return graph if len(present) == graph.size else graph.without(set(graph.ranks) - set(present))


@dataclass(frozen=True, kw_only=True, slots=True)
class Dpsgd:
    """Each worker averages with its neighbours on a graph at every step, and steps on its own gradient."""

    def strategy(self, workers: int, graph: Graph, over: str, codec: Codec = dense) -> Strategy:
        graph.check()
        refuse_lagging(codec)

        def roles(workers: int, servers: int) -> list[Role]:
            work = partial(worker, graph=graph, codec=codec)
            return [Role(Address("worker", rank), work, trains=True, scored=True) for rank in range(workers)]

        return Strategy(
            name="dpsgd", settings={}, roles=roles,
            description=Description(
                scored="the mean of the workers' models", rate="unchanged: each worker's own", scaling=GROW,
            ),
            taxonomy=Taxonomy(
                optimization="decentral", architecture="peers", scheduling="synchronous", exchange="2:1 reduce",
                topology="closed ring" if over == "ring" else over,
            ),
        )  # fmt: skip
