"""Local SGD: every worker trains alone for `period` steps, then all models are averaged."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial

from covey.errors import PlanError
from covey.exchange.collectives import ring
from covey.message import Address
from covey.program import Node
from covey.replica import Replica
from covey.strategy import Role, Strategy, Taxonomy


async def worker(node: Node, replica: Replica, *, period: int) -> None:
    """Step alone; after every `period` steps replace the model by the mean of all. Momentum stays one's own."""
    for step in node.steps():
        replica.apply(await replica.gradient(node))
        await node.note("update")
        if (step + 1) % period == 0:
            present = node.present(step)
            replica.model.mul_(1 / len(present))
            await node.sum(replica.model, tuple(Address("worker", rank) for rank in present), ring)


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalSgd:
    """Train alone for `period` steps, then average all models with an all-reduce (Lin et al. 2018)."""

    period: int = 8

    def strategy(self, workers: int) -> Strategy:
        if self.period < 1:
            raise PlanError(f"local_sgd(period={self.period}): average after every 1 step or more")

        def roles(workers: int, servers: int) -> list[Role]:
            work = partial(worker, period=self.period)
            return [Role(Address("worker", rank), work, trains=True, scored=True) for rank in range(workers)]

        return Strategy(
            name="local_sgd", settings=asdict(self), roles=roles, scored="the mean of the workers' models",
            rate="unchanged: each worker's own",
            taxonomy=Taxonomy(
                optimization="decentral", architecture="peers", scheduling="synchronous", exchange="all-reduce",
                topology="closed ring",
            ),
        )  # fmt: skip
