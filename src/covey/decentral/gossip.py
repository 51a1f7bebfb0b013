"""GoSGD: now and then a worker gives half of its weight, with its model, to a random peer."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial

from covey.errors import PlanError
from covey.message import Address, Message
from covey.program import Memory, Node
from covey.replica import Replica
from covey.strategy import Role, Strategy, Taxonomy
from covey.topology import Graph
from covey.vector import Vector


class Gossip(Message):
    """A model and the weight that travels with it."""

    model: Vector
    weight: float


class Farewell(Message):
    """I train no more, and every gossip of mine was sent before this."""

    counted = False


async def worker(node: Node, replica: Replica, *, probability: float, graph: Graph) -> None:
    """Take in all gossip that waits, step, and sometimes pass half of one's weight on (Blot et al. 2016)."""
    weight = node.remember(1 / node.workers)
    replica.weight = weight.value
    peers = set(graph.neighbours(node.rank))
    for _ in node.steps():
        while gossip := node.receive_nowait(Gossip):  # all of it, or the queue of a slow worker grows without bound
            take_in(replica, weight, gossip)
        while farewell := node.receive_nowait(Farewell):
            peers.discard(farewell.sender.rank)
        replica.apply(await replica.gradient(node))
        await node.note("update")
        if peers and node.rng.random() < probability:
            replica.weight = weight.value = weight.value / 2
            peer = Address("worker", node.rng.choice(sorted(peers)))
            await node.send(peer, Gossip(replica.model, weight.value))
    await part(node, replica, weight, peers, graph)


def take_in(replica: Replica, weight: Memory[float], gossip: Gossip) -> None:
    """Move to the weighted mean of both models; the weights add up, so that none is lost."""
    total = weight.value + gossip.weight
    replica.model.lerp_(gossip.model, gossip.weight / total)
    replica.weight = weight.value = total


async def part(node: Node, replica: Replica, weight: Memory[float], peers: set[int], graph: Graph) -> None:
    """Say farewell, and take in what still travels, until every peer has said farewell too."""
    await node.broadcast([Address("worker", rank) for rank in graph.neighbours(node.rank)], Farewell())
    while peers:
        message = await node.receive_any(Gossip, Farewell)
        if isinstance(message, Gossip):
            take_in(replica, weight, message)
        else:
            peers.discard(message.sender.rank)
    while gossip := node.receive_nowait(Gossip):
        take_in(replica, weight, gossip)


@dataclass(frozen=True, kw_only=True, slots=True)
class Gosgd:
    """Gossip: after a step, with `probability`, give half of one's weight and the model to a random peer."""

    probability: float = 0.1

    def strategy(self, workers: int, graph: Graph, over: str) -> Strategy:
        graph.check_mutual()
        if not 0 < self.probability <= 1:
            raise PlanError(f"gosgd(probability={self.probability}): must lie in (0, 1]; 0 would mean no collaboration")

        def roles(workers: int, servers: int) -> list[Role]:
            work = partial(worker, probability=self.probability, graph=graph)
            return [Role(Address("worker", rank), work, trains=True, scored=True) for rank in range(workers)]

        return Strategy(
            name="gosgd", settings=asdict(self), roles=roles, over=over,
            scored="the mean of the workers' models, by their weights", rate="unchanged: each worker's own",
            taxonomy=Taxonomy(
                optimization="decentral", architecture="peers", scheduling="soft", exchange="ad hoc",
                topology="peer-to-peer mesh" if over == "complete" else over,
            ),
        )  # fmt: skip
