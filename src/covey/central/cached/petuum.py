"""SSP as Petuum does it: workers keep a copy of the parameters, apply their own updates to it, and read rarely.

A worker steps its own optimizer and pushes the change; servers add changes. With `eager`, servers give new parameters
to every worker whenever the slowest has ticked, and nobody asks (Dai et al. 2015).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from covey.central.cached.cache import CachedChange, ParameterCopy, ReadParameters, Retire, Retired, worker
from covey.central.pulls import Pulls
from covey.central.roles import workers_and_servers
from covey.errors import PlanError
from covey.exchange.codec import Codec, dense, seed
from covey.message import Address
from covey.model.replica import Replica
from covey.program import Node
from covey.strategy import Description, Role, ServerPlan, Strategy, Taxonomy


@dataclass(slots=True)
class WorkerClocks:
    """How many steps each worker has done that still trains."""

    done: dict[int, int]

    @property
    def slowest(self) -> int:
        return min(self.done.values(), default=0)


class TableServer:
    """One server: a piece of the parameters to which changes are added."""

    def __init__(self, node: Node, replica: Replica, index: int, eager: bool, codec: Codec = dense) -> None:
        self.node, self.replica, self.eager, self.first = node, replica, eager, index == 0
        form = replica.form(replica.trained)
        self.coder = codec.made(form, seed(node))
        self.pulls = Pulls(node, form, codec, together=False) if codec.pull else None
        self.clocks = node.remember("clocks", WorkerClocks(dict.fromkeys(range(node.workers), 0))).value
        self.params = replica.flat.cut(replica.trained)
        self.parked: dict[int, ReadParameters] = {}
        self.readers: set[int] = set()
        self.left: set[int] = set()  # not remembered: after a restart all say it anew, and wait for the answer
        self.told = node.remember("told", [0]).value  # the slowest worker's clock when all were given new parameters

    async def serve(self) -> None:
        while len(self.left) < self.node.workers:
            message = await self.node.receive_any(ReadParameters, CachedChange, Retire)
            rank = message.sender.rank
            if isinstance(message, ReadParameters):
                self.parked[rank] = message
                self.readers.add(rank)
            elif isinstance(message, CachedChange):
                await self.add(rank, message)
            else:
                self.clocks.done.pop(rank, None)
                self.readers.discard(rank)
                self.left.add(rank)
                await self.node.send(message.sender, Retired())
            await self.answer()

    async def add(self, rank: int, message: CachedChange) -> None:
        self.params.add_(self.coder.decode(message.change))
        self.clocks.done[rank] += 1
        self.replica.progress.add(message.samples)
        if self.first:
            await self.node.note("update")
            if self.replica.buffers.parts:
                self.replica.buffers.lerp_(message.buffers, 1 / self.node.workers)

    async def answer(self) -> None:
        for rank in sorted(self.parked):
            if self.parked[rank].clock <= self.clocks.slowest:
                del self.parked[rank]
                await self.give(rank)
        if self.eager and self.clocks.slowest > self.told[0]:
            self.told[0] = self.clocks.slowest
            for rank in sorted(self.readers - self.parked.keys()):
                await self.give(rank)

    async def give(self, rank: int) -> None:
        copy = ParameterCopy(self.clocks.slowest, self.clocks.done[rank], self.params)
        if self.pulls:
            copy.params, copy.whole = self.pulls.give(rank, self.params, copy.clock)
        await self.node.send(Address("worker", rank), copy)


async def server(node: Node, replica: Replica, *, index: int, count: int, eager: bool, codec: Codec) -> None:
    """Hold one piece of the parameters until every worker has retired."""
    replica.keep(replica.pieces(count)[index], buffers=index == 0)
    await TableServer(node, replica, index, eager, codec).serve()


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
        work = partial(worker, count=servers, bound=bound, share=share, eager=eager, codec=codec)
        return workers_and_servers(workers, work, servers, partial(server, eager=eager, codec=codec))

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
