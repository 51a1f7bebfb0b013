"""MALT where workers come and go: with every vector travels which batches it contains."""

from __future__ import annotations

from collections import deque

from covey.decentral.gossip.folding import Fold, Share, folded, take
from covey.decentral.gossip.gossip_lists import Contents
from covey.decentral.gossip.leased_gossip import GossipLeases
from covey.decentral.leaving import addresses
from covey.exchange.collectives.sums import Group
from covey.message import Address, Message
from covey.model.replica import Replica
from covey.program import Node
from covey.servers.common_states import WholeReplica
from covey.servers.leased_batches import leased_gradient
from covey.servers.leased_rounds import LeasedRounds, one_step
from covey.topology import Graph
from covey.vector import Vector


class CountedScatter(Message):
    """A worker's gradient or model, for the receiver to fold."""

    wire_name = "malt.counted"

    step: int
    vector: Vector
    contains: Contents


class Scattered:
    """What one worker has to give, and what has come to it."""

    def __init__(self, node: Node, replica: Replica, share: Share, fold: Fold, queue: int | None) -> None:
        self.node, self.replica, self.share, self.fold = node, replica, share, fold
        self.leases = GossipLeases(node, replica, self.take_in)
        ranks = range(node.workers)
        self.slots: dict[int, deque[CountedScatter]] = {rank: deque(maxlen=queue) for rank in ranks}
        self.newest = dict.fromkeys(ranks, -1)  # step of each that has come

    async def next(self) -> CountedScatter | None:
        """Differentiate the next batch; None: there is none, or the run is told to end."""
        lease = await self.leases.lease()
        if lease is None or not self.node.training():
            return None
        vector = await self.leases.gradient(lease)
        if self.share == "model":
            self.replica.apply(vector)
            vector = self.replica.model
        self.leases.did()
        return CountedScatter(self.node.step, vector, self.leases.contains())

    def put(self, scatter: CountedScatter) -> None:
        rank = scatter.sender.rank
        self.slots[rank].append(scatter)
        self.newest[rank] = max(self.newest[rank], scatter.step)

    def take_in(self) -> None:
        """Put what has come into its slots; where workers meet, nothing is kept of those that are gone."""
        while scatter := self.node.receive_nowait(CountedScatter):
            self.put(scatter)
        for rank in self.leases.replaced():
            self.slots[rank].clear()

    def step(self, own: CountedScatter, ahead: bool = True) -> None:
        """Fold what lies in the slots, in the order of ranks, and step; without what is `ahead` it waits there."""
        came: list[CountedScatter] = []
        for _, slot in sorted(self.slots.items()):
            while slot and (ahead or slot[0].step <= own.step):
                came.append(slot.popleft())
        take(self.replica, own.vector, [scatter.vector for scatter in came], self.share, self.fold)
        for scatter in came:
            self.leases.took_in(scatter.sender, scatter.contains, whole=self.share == "model")


async def leased_slots(
    node: Node, replica: Replica, *, graph: Graph, share: Share, fold: Fold, queue: int
) -> None:  # fmt: skip
    """Without waiting: what has not left is overwritten, and what is lost is lost."""
    scattered = Scattered(node, replica, share, fold, queue)
    leases = scattered.leases
    going = await leases.begin_here()
    await node.spawn(slot_keeper(node, scattered))
    while going:
        while own := await scattered.next():
            for peer in addresses(leases.among(graph).hearers(node.rank)):
                await node.send(peer, own, keep="latest", lossy=True)
            scattered.step(own)
            await node.note("update")
        going = not await leases.part_from_all()


async def slot_keeper(node: Node, scattered: Scattered) -> None:
    while True:
        scattered.put(await node.receive(CountedScatter))


async def leased_together(
    node: Node, replica: Replica, *, graph: Graph, share: Share, fold: Fold, bound: int = 0
) -> None:  # fmt: skip
    """With a barrier, or never without the vectors of `bound` steps ago."""
    scattered = Scattered(node, replica, share, fold, None)
    leases = scattered.leases
    going = await leases.begin_here()
    while going:
        while own := await scattered.next():
            await round_of(node, scattered, own, leases.among(graph), bound)
        going = not await leases.part_from_all()


async def round_of(node: Node, scattered: Scattered, own: CountedScatter, graph: Graph, bound: int) -> None:
    """Scatter, wait for what is due, fold, step."""
    leases, step = scattered.leases, node.step
    active = leases.active()
    for peer in addresses(rank for rank in graph.hearers(node.rank) if rank in active):
        await node.send(peer, own, paced=True)  # nobody is more than `bound` of them ahead
    due = {rank: leases.due(rank, bound) for rank in graph.neighbours(node.rank)}

    async def gather() -> None:
        for rank, last in due.items():
            while scattered.newest[rank] < last:
                scattered.put(await node.receive(CountedScatter, sender=Address("worker", rank)))
        scattered.take_in()

    await leases.conclude(gather, lambda: scattered.step(own, ahead=bound > 0))
    if bound:
        await node.note("lead", max((step - scattered.newest[rank] for rank in due), default=0))
    await node.note("update")


async def leased_in_step(node: Node, replica: Replica, *, fold: Fold) -> None:
    """Where all hear all, with a barrier: the models stay alike."""
    rounds = LeasedRounds(node, replica, WholeReplica(replica))

    async def act(group: Group) -> None:
        replica.progress.begin(rounds.samples)
        await fold_all(node, replica.grad, fold, group)

    going = await rounds.begin_here()
    while going:
        while await rounds.next(one_step) and node.training():
            if lease := rounds.lease():
                await leased_gradient(node, replica, lease)
            if await rounds.conclude(act, replica.grad):
                replica.apply(replica.grad)
                await node.note("update")
                await rounds.hand_out()
        going = not await rounds.part_from_all()


async def fold_all(node: Node, grad: Vector, fold: Fold, group: Group) -> None:
    """Give all others this step's gradient, and fold theirs."""
    others = [who for who in group if who != node.address]
    await node.broadcast(others, CountedScatter(node.step, grad, ()))
    folded(grad, [scatter.vector for scatter in await node.gather(CountedScatter, others, step=node.step)], fold)
