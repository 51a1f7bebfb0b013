"""Proteus (Harlap et al. 2017): servers on machines that stay, or on those that may vanish, with backups.

A run with a fixed number of workers has no machine that may vanish: it is `bsp`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from covey.central.server.client import worker
from covey.central.server.shard import Shard, ShardPolicy
from covey.central.tiered.tier_server import tiered_server
from covey.central.tiered.tier_stages import TierRule
from covey.central.tiered.tier_worker import tiered_worker
from covey.errors import PlanError
from covey.exchange.codec import Codec, dense
from covey.message import Address
from covey.model.replica import Replica
from covey.names import option
from covey.program import Node
from covey.servers.roles import addresses, workers_and_servers
from covey.strategy import GROW, Description, Role, ServerPlan, Strategy, TaskTerms, Taxonomy
from covey.synchronization import Bounded, Everyone, Rule
from covey.vector import Vector, mean

KEEPING = ShardPolicy(Rule(Bounded(0), Everyone()))


@dataclass(frozen=True, kw_only=True, slots=True)
class Proteus:
    """As `bsp`; where many machines may vanish, these serve the parameters, with backups on those that stay."""

    backup: int = 4  # steps between two backups
    stage2: float = 1.0  # above this many transient machines for a reliable one, transient ones serve
    stage3: float = 15.0  # above this many, reliable ones do not train

    def strategy(self, workers: int, codec: Codec = dense) -> Strategy:
        if self.backup < 1:
            raise PlanError(f"proteus(backup={self.backup}): a backup is made every 1 or more steps")
        if not 0 <= self.stage2 <= self.stage3:
            raise PlanError(
                f"proteus(stage2={self.stage2:g}, stage3={self.stage3:g}): the numbers of transient machines for a "
                "reliable one must be 0 or more, and that of stage 3 at least that of stage 2"
            )
        return Strategy(
            name="proteus", settings={"backup": self.backup, "stage2": self.stage2, "stage3": self.stage3},
            roles=self._roles, servers=ServerPlan(1),
            description=Description(
                scored="the parameters on the reliable machines: those of the last backup, where others serve",
                rate="unchanged", scaling=GROW,
            ),
            terms=TaskTerms(clips="each gradient"),
            taxonomy=Taxonomy(
                optimization="central", architecture="server", scheduling="synchronous", exchange="reduce / broadcast",
                topology="parameter servers, on machines that stay or with backups there",
            ),
        )  # fmt: skip

    def _roles(self, workers: int, servers: int) -> list[Role]:
        if servers > workers:
            raise PlanError(
                f"{option('servers', servers)}: each server of proteus is on the machine of a worker, and there are "
                f"only {workers}"
            )
        rule = TierRule(servers, workers, self.stage2, self.stage3)
        work = partial(any_worker, servers=addresses(servers), rule=rule)
        serve = partial(any_server, workers=workers, rule=rule, backup=self.backup)
        return [placed(role) for role in workers_and_servers(workers, work, servers, serve, one_batch=True)]


def placed(role: Role) -> Role:
    """Servers are on the machines of the first workers."""
    if role.address.role == "server":
        return replace(role, host=Address("worker", role.address.rank))
    return replace(role, warned=True)


async def any_worker(node: Node, replica: Replica, *, servers: Sequence[Address], rule: TierRule) -> None:
    """The program of a worker, in a run of a fixed number of workers or in one to which they come and go."""
    if node.incarnation.leased:
        await tiered_worker(node, replica, rule=rule)
    else:
        await worker(node, replica, servers=servers)


async def any_server(
    node: Node, replica: Replica, *, workers: int, rule: TierRule, backup: int, count: int
) -> None:  # fmt: skip
    """The same for a server."""
    if node.incarnation.leased:
        await tiered_server(node, replica, rule=rule, backup=backup)
    else:
        await UnclippedShard(node, replica, keeping=KEEPING, clients=range(workers), count=count).serve()


class UnclippedShard(Shard):
    """A server that leaves clipping to the workers, as they can do it wherever parameters are."""

    async def mean(self, grads: Sequence[Vector], weights: Sequence[float], step: int) -> Vector:
        return mean(grads, weights)
