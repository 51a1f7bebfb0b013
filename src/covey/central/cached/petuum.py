"""SSP as Petuum does it: workers keep a copy of the parameters, apply their own updates to it, and read rarely.

A worker steps its own optimizer and pushes the change; servers add changes. With `eager`, servers give new parameters
to every worker whenever the slowest has ticked, and nobody asks (Dai et al. 2015).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from covey.central.cached.cache import CachedChange, ParameterCopy, ReadParameters
from covey.central.cached.leased_cache import LeasedChange, any_worker
from covey.central.cached.rows import Tick
from covey.data.leases import Lease
from covey.errors import PlanError
from covey.exchange.codec import Codec, dense
from covey.message import Address
from covey.model.replica import Replica
from covey.program import Node
from covey.servers.dealing import DealingServer
from covey.servers.goodbye import Goodbye
from covey.servers.pieces import PieceServer
from covey.servers.roles import addresses, workers_and_servers
from covey.servers.server_program import serve
from covey.servers.standing import LEFT
from covey.strategy import Description, Role, ServerPlan, Strategy, Taxonomy


@dataclass(slots=True)
class WorkerClocks:
    """How many steps each worker has done that still trains."""

    done: dict[int, int]

    @property
    def slowest(self) -> int:
        return min(self.done.values(), default=0)


class TableServer(PieceServer):
    """One server: a piece of the parameters to which changes are added."""

    def __init__(self, node: Node, replica: Replica, *, count: int, eager: bool, codec: Codec = dense) -> None:
        super().__init__(node, replica, addresses(count), codec)
        self.clocks = node.remember("clocks", WorkerClocks(dict.fromkeys(range(node.workers), 0))).value
        self.eager, self.readers = eager, set[int]()
        self.parked: dict[int, ReadParameters] = {}
        self.told = node.remember("told", [0]).value  # the slowest worker's clock when all were given new parameters
        self.hears = {ReadParameters: self.park, CachedChange: self.add}

    async def park(self, read: ReadParameters) -> None:
        self.parked[read.sender.rank] = read
        self.readers.add(read.sender.rank)

    async def left(self, who: Address) -> None:
        """No more parameters go there."""
        self.clocks.done.pop(who.rank, None)
        self.readers.discard(who.rank)
        if who in self.finished:
            await self.node.send(who, Goodbye())

    def next_step(self, rank: int) -> int:
        return self.clocks.done.get(rank, LEFT)  # one that had left before a restart

    def forget_requests(self, rank: int) -> None:
        self.parked.pop(rank, None)
        self.readers.discard(rank)

    async def add(self, message: CachedChange) -> None:
        if self.node.incarnation.elastic and message.step < self.clocks.done[message.sender.rank]:
            return  # of a worker that was restarted: another server lacked it
        self.params.add_(self.coder.decode(message.change))
        self.clocks.done[message.sender.rank] += 1
        await self.count(message)

    async def count(self, done: CachedChange | Tick) -> None:
        """A step was done."""
        self.keep_buffers([done.buffers])
        self.replica.progress.add(done.samples)
        await self.note_update()

    async def settle(self) -> None:
        for rank in sorted(self.parked):
            if self.parked[rank].clock <= self.clocks.slowest:
                del self.parked[rank]
                await self.answer(rank)
        if self.eager and self.clocks.slowest > self.told[0]:
            self.told[0] = self.clocks.slowest
            for rank in sorted(self.readers - self.parked.keys()):
                await self.answer(rank)

    async def answer(self, rank: int) -> None:
        given = self.give(rank, self.clocks.slowest)
        copy = ParameterCopy(self.clocks.slowest, self.clocks.done[rank], *given)
        await self.node.send(Address("worker", rank), copy)


class LeasedTable(DealingServer, TableServer):
    """A server whose workers come and go."""

    def __init__(self, *given: Any, **settings: Any) -> None:
        super().__init__(*given, **settings)
        self.hears |= {LeasedChange: self.add}

    @property
    def taking_part(self) -> dict[int, int]:
        return self.clocks.done

    async def park(self, read: ReadParameters) -> None:
        """One that has come in again may be further than it is counted: it does not wait for itself."""
        done = self.clocks.done
        done[read.sender.rank] = max(done[read.sender.rank], read.clock)
        await super().park(read)

    async def add(self, message: CachedChange) -> None:
        assert isinstance(message, LeasedChange)
        self.ticked(message.sender.rank, message.step, message.counters)
        if self.received.add(Lease(message.seat, message.number)):
            self.params.add_(self.coder.decode(message.change))
            await self.count(message)


def any_table(node: Node, replica: Replica, **settings: Any) -> TableServer:
    """The program of a server: LeasedTable where workers come and go."""
    return (LeasedTable if node.incarnation.leased else TableServer)(node, replica, **settings)


def cached(
    name: str, bound: int, weight: float | None, eager: bool, workers: int, codec: Codec = dense
) -> Strategy:  # fmt: skip
    """The family: SSP with a copy at each worker."""
    if bound < 0:
        raise PlanError(f"{name}(bound={bound}): the bound is a number of steps, 0 or more")
    share = 1 / workers if weight is None else weight
    if share <= 0:
        raise PlanError(f"{name}(weight={weight}): the weight must be more than 0; omit it for 1/{workers}")

    def roles(workers: int, servers: int) -> list[Role]:
        work = partial(any_worker, count=servers, bound=bound, share=share, eager=eager, codec=codec)
        return workers_and_servers(workers, work, servers, partial(serve, any_table, eager=eager, codec=codec))

    return Strategy(
        name=name, settings={"bound": bound, "weight": share}, roles=roles, servers=ServerPlan(1),
        description=Description(
            scored="the servers' parameters", rate="each change counts 1/workers; momentum is each worker's own",
        ),
        taxonomy=Taxonomy(
            optimization="central", architecture="server", scheduling="bounded",
            exchange="eager scatter" if eager else "ad hoc", topology="parameter servers",
        ),
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Petuum:
    """Stale synchronous with a copy at each worker: it reads only when its copy is more than `bound` steps old."""

    bound: int = 3
    weight: float | None = None  # what a change counts; 1 / workers

    def strategy(self, workers: int, codec: Codec = dense) -> Strategy:
        return cached("petuum", self.bound, self.weight, eager=False, workers=workers, codec=codec)


@dataclass(frozen=True, kw_only=True, slots=True)
class Essp:
    """Eager stale synchronous: servers send new parameters whenever the slowest worker has ticked; nobody asks."""

    bound: int = 3
    weight: float | None = None  # what a change counts; 1 / workers

    def strategy(self, workers: int, codec: Codec = dense) -> Strategy:
        return cached("essp", self.bound, self.weight, eager=True, workers=workers, codec=codec)
