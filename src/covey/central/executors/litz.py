"""Litz (Qiao et al. 2018): as many executors as the largest number of workers, which live on those that are there.

A run with a fixed number of workers has one executor on each: it is `bsp`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from covey.central.executors.micro_tasks import executor_server, micro_task_worker
from covey.central.server.client import worker
from covey.central.server.shard import Shard, ShardPolicy
from covey.exchange.codec import Codec, dense
from covey.model.replica import Replica
from covey.program import Node
from covey.servers.roles import addresses, workers_and_servers
from covey.strategy import GROW, Description, Role, ServerPlan, Strategy, TaskTerms, Taxonomy
from covey.synchronization import Bounded, Everyone, Rule

KEEPING = ShardPolicy(Rule(Bounded(0), Everyone()))


@dataclass(frozen=True, kw_only=True, slots=True)
class Litz:
    """As `bsp` with the largest number of workers, to the bit: executors of workers that leave move to the others."""

    def strategy(self, workers: int, codec: Codec = dense) -> Strategy:
        return Strategy(
            name="litz", settings={}, roles=roles, servers=ServerPlan(1, fixed=True),
            description=Description(scored="the server's parameters", rate=KEEPING.rule.gather.rate, scaling=GROW),
            terms=TaskTerms(clips="each update"),
            taxonomy=Taxonomy(
                optimization="central", architecture="server", scheduling="synchronous", exchange="reduce / broadcast",
                topology="parameter servers",
            ),
        )  # fmt: skip


def roles(workers: int, servers: int) -> list[Role]:
    serve = partial(any_server, workers=workers)
    return workers_and_servers(workers, any_worker, servers, serve, one_batch=True)


async def any_worker(node: Node, replica: Replica) -> None:
    """The program of a worker, in a run of a fixed number of workers or in one to which they come and go."""
    if node.incarnation.leased:
        await micro_task_worker(node, replica)
    else:
        await worker(node, replica, servers=addresses(1), clip=False)


async def any_server(node: Node, replica: Replica, *, workers: int, count: int) -> None:
    """The same for the server."""
    if node.incarnation.leased:
        await executor_server(node, replica)
    else:
        await Shard(node, replica, keeping=KEEPING, clients=range(workers), count=count).serve()
