"""All-reduce: every worker holds the same optimizer state and applies the same mean gradient."""

from __future__ import annotations

from dataclasses import dataclass

from covey.exchange.collectives import ring
from covey.message import Address
from covey.program import Node
from covey.replica import Replica
from covey.strategy import GROW, Role, Strategy, Taxonomy


async def worker(node: Node, replica: Replica) -> None:
    """Differentiate, sum over all workers, step; the replicas stay bit-identical."""
    for step in node.steps():
        present = node.present(step)
        grad = await replica.gradient(node, clip=False)
        samples = [replica.samples(rank, step) for rank in present]
        replica.under_way = sum(samples)  # exactly: a schedule must give every replica the same rate
        grad.mul_(replica.batch.samples / replica.under_way)
        replica.buffers.mul_(1 / len(present))
        await node.sum(grad.join(replica.buffers), tuple(Address("worker", rank) for rank in present), ring)
        replica.clip_(grad)
        replica.update()
        if node.rank == present[0]:
            await node.note("update")
            await node.note("staleness", 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Allreduce:
    """Ring all-reduce of gradients with a replicated optimizer, as PyTorch's DistributedDataParallel does."""

    def strategy(self, workers: int) -> Strategy:
        def roles(workers: int, servers: int) -> list[Role]:
            return [
                Role(Address("worker", rank), worker, trains=True, scored=rank == 0, one_batch=True)
                for rank in range(workers)
            ]

        return Strategy(
            name="allreduce", settings={}, roles=roles, scored="worker 0's model: all are the same",
            rate="unchanged: the mean over all workers' samples", scaling=GROW, clips="each update",
            taxonomy=Taxonomy(
                optimization="central", architecture="peers", scheduling="synchronous", exchange="all-reduce",
                topology="closed ring",
            ),
        )  # fmt: skip
