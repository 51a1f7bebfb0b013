"""All-reduce: every worker holds the same optimizer state and applies the same mean gradient."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from covey.exchange import patterns
from covey.exchange.collectives import Pattern
from covey.message import Address
from covey.program import Node
from covey.replica import Replica
from covey.strategy import GROW, Role, Strategy, Taxonomy


async def worker(node: Node, replica: Replica, *, pattern: Pattern) -> None:
    """Differentiate, sum over all workers, step; the replicas stay bit-identical."""
    for step in node.steps():
        present = node.present(step)
        grad = await replica.gradient(node, clip=False)
        # exactly: a schedule must give every replica the same rate
        replica.under_way = replica.lessons.together(present, step)
        grad.mul_(replica.batch.samples / replica.under_way)
        replica.buffers.mul_(1 / len(present))
        await node.sum(grad.join(replica.buffers), node.members(step), pattern)
        replica.clip_(grad)
        replica.update()
        if node.rank == present[0]:
            await node.note("update")
            await node.note("staleness", 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Allreduce:
    """All-reduce of gradients with a replicated optimizer, as PyTorch's DistributedDataParallel does."""

    pattern: patterns.Name = "ring"
    local: int = 2  # hierarchical: so many neighbouring workers are one machine

    def strategy(self, workers: int) -> Strategy:
        work = partial(worker, pattern=patterns.pattern("allreduce", self.pattern, self.local))

        def roles(workers: int, servers: int) -> list[Role]:
            return [
                Role(Address("worker", rank), work, trains=True, scored=rank == 0, one_batch=True)
                for rank in range(workers)
            ]

        return Strategy(
            name="allreduce", settings=self.written(), roles=roles, scored="worker 0's model: all are the same",
            rate="unchanged: the mean over all workers' samples", scaling=GROW, clips="each update",
            taxonomy=Taxonomy(
                optimization="central", architecture="peers", scheduling="synchronous", exchange="all-reduce",
                topology=patterns.SHAPES[self.pattern],
            ),
        )  # fmt: skip

    def written(self) -> dict[str, object]:
        """A ring goes without saying."""
        machine = {"local": self.local} if self.pattern == "hierarchical" else {}
        return {} if self.pattern == "ring" else {"pattern": self.pattern, **machine}
