"""Where do the servers live? A layout turns a strategy with servers into one whose servers are placed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, Protocol

from covey.central.hashing import divide
from covey.errors import PlanError
from covey.message import Address
from covey.model.replica import Replica
from covey.program import Node, Program
from covey.strategy import Role, ServerPlan, Strategy


class Layout(Protocol):
    """Settings that place a strategy's servers."""

    def place(self, strategy: Strategy, workers: int) -> Strategy: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Dedicated:
    """A number of servers, each on its own machine."""

    count: int = 1

    def place(self, strategy: Strategy, workers: int) -> Strategy:
        if self.count < 1:
            raise PlanError(f"servers(count={self.count}): at least 1 is needed")
        over = f"servers(count={self.count})"
        return _over(replace(strategy, servers=replace(strategy.servers, count=self.count, fixed=True)), over)


@dataclass(frozen=True, kw_only=True, slots=True)
class Colocated:
    """Every worker's machine serves one of n shards; what stays on the machine does not count as traffic."""

    def place(self, strategy: Strategy, workers: int) -> Strategy:
        def roles(workers: int, servers: int) -> list[Role]:
            return [_beside_its_worker(role) for role in strategy.roles(workers, workers)]

        taxonomy = replace(strategy.taxonomy, topology="parameter servers, one with each worker")
        servers = replace(strategy.servers, count=workers, fixed=True)
        return _over(replace(strategy, servers=servers, roles=roles, taxonomy=taxonomy), "colocated")


@dataclass(frozen=True, kw_only=True, slots=True)
class Hashed:
    """Servers own arcs of a hash ring, `points` each: one more of them would move only 1/(count+1) of the numbers."""

    count: int = 2
    points: int = 16

    def place(self, strategy: Strategy, workers: int) -> Strategy:
        over = f"hashed(count={self.count}, points={self.points})"
        if self.count < 1 or self.points < 1:
            raise PlanError(f"{over}: at least 1 server, with 1 point or more on the ring")

        def roles(workers: int, servers: int) -> list[Role]:
            return [
                replace(role, program=partial(_on_the_ring, program=role.program, points=self.points))
                for role in strategy.roles(workers, servers)
            ]

        taxonomy = replace(strategy.taxonomy, topology="parameter servers on a hash ring")
        servers = ServerPlan(self.count, fixed=True)
        return _over(replace(strategy, servers=servers, roles=roles, taxonomy=taxonomy), over)


async def _on_the_ring(node: Node, replica: Replica, *, program: Program, points: int) -> None:
    """A role whose servers divide the parameters by the ring."""
    replica.divide = partial(divide, points=points)
    await program(node, replica)


@dataclass(frozen=True, kw_only=True, slots=True)
class Proxies:
    """A proxy for each group of workers adds their gradients up, and answers from a copy at most `bound` steps old."""

    groups: int = 2
    bound: int = 0
    first: Literal["rank", "lagging"] = "rank"  # whose answers leave first; lagging: those furthest behind (Mai 2015)

    def place(self, strategy: Strategy, workers: int) -> Strategy:
        first = "" if self.first == "rank" else f", first={self.first}"
        over = f"proxies(groups={self.groups}, bound={self.bound}{first})"
        if strategy.servers.grouped is None:
            raise PlanError(
                f"{strategy.name} cannot have proxies, which give servers the sums of a group, not each worker's "
                "gradients: they go with bsp, ssp and asynchronous, where epochs end with all"
            )
        if not 1 <= self.groups <= workers:
            raise PlanError(f"{over}: {workers} workers make from 1 to {workers} groups")
        if self.bound < 0:
            raise PlanError(f"{over}: the bound is a number of steps, 0 or more (0 adds no staleness)")
        apart = strategy.taxonomy.scheduling == "synchronous" and self.bound > 0
        taxonomy = replace(
            strategy.taxonomy, topology="parameter servers behind a proxy for each group of workers",
            scheduling="bounded" if apart else strategy.taxonomy.scheduling,
        )  # fmt: skip
        grouped = strategy.servers.grouped

        def roles(workers: int, servers: int) -> list[Role]:
            return grouped(workers, servers, self.groups, self.bound, self.first == "lagging")

        return _over(replace(strategy, roles=roles, taxonomy=taxonomy), over)


def _over(strategy: Strategy, over: str) -> Strategy:
    return replace(strategy, composition=replace(strategy.composition, over=over))


def _beside_its_worker(role: Role) -> Role:
    if role.address.role != "server":
        return role
    return replace(role, host=Address("worker", role.address.rank))


LAYOUTS: Mapping[str, type[Layout]] = {
    "servers": Dedicated, "colocated": Colocated, "hashed": Hashed, "proxies": Proxies,
}  # fmt: skip
