"""D-PSGD: mix with the neighbours of a graph while stepping on one's own gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

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


class NeighbourMixing:
    """Models that are mixed as they are."""

    def __init__(self, node: Node, replica: Replica, codec: Codec) -> None:
        self.node, self.replica = node, replica

    async def share(self) -> Vector:
        """What neighbours are sent."""
        return self.replica.model

    def mix(self, graph: Graph, shares: Sequence[NeighbourModel]) -> None:
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

    def mix(self, graph: Graph, shares: Sequence[NeighbourModel]) -> None:
        rank, replica = self.node.rank, self.replica
        mine = Vector(self.own.of().parts[: len(replica.flat.parts)]).join(replica.buffers.clone())
        for came in shares:
            gap = self.theirs.hear(came.model, came.sender.rank) - mine
            replica.model.add_(gap, alpha=self.gain * graph.weight(rank, came.sender.rank))


async def worker(node: Node, replica: Replica, *, graph: Graph, codec: Codec) -> None:
    """The gradient is taken at the weights before mixing, and computed while the shares travel (Lian et al. 2017)."""
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
