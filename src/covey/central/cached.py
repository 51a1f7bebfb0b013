"""SSP as Petuum does it: workers keep a copy of the parameters, apply their own updates to it, and read rarely.

A worker steps its own optimizer and pushes the change; servers add changes. With `eager`, servers give new parameters
to every worker whenever the slowest has ticked, and nobody asks (Dai et al. 2015).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from covey.central.roles import workers_and_servers
from covey.errors import PlanError
from covey.message import Address, Message
from covey.program import Node
from covey.replica import Replica
from covey.strategy import Role, Strategy, Taxonomy
from covey.vector import Vector


class Read(Message):
    """A worker asks for parameters that hold every change of the first `clock` steps of all workers."""

    clock: int


class Copy(Message):
    """The parameters when every worker had done `clock` steps, with the first `mine` changes of the one they go to."""

    clock: int
    mine: int
    params: Vector


class Change(Message):
    """What a worker's step changed, already scaled to count its share."""

    step: int
    samples: int
    change: Vector
    buffers: Vector


class Retire(Message):
    """A worker will change nothing more."""

    counted = False


class Retired(Message):
    """No more parameters come from this server."""

    counted = False


class Cache:
    """A worker's copy: the servers' parameters as of some clock, and one's own changes that they do not hold yet."""

    def __init__(self, node: Node, replica: Replica, count: int, bound: int, eager: bool) -> None:
        self.node, self.replica, self.bound, self.eager = node, replica, bound, eager
        self.servers = [Address("server", index) for index in range(count)]
        self.pieces = replica.pieces(count)
        self.clocks = [-1] * count  # what was read; nothing yet
        while node.receive_nowait(Copy):
            pass  # of before a restart, after which a server knows its readers no more
        self.own: list[tuple[int, Vector]] = []  # changes by step that some server's copy may lack

    async def refresh(self) -> None:
        """See to it that the copy is at most `bound` clocks old: the gate is on the read (Ho et al. 2013)."""
        need = self.node.step - self.bound
        for index, address in enumerate(self.servers):
            if self.eager:
                while copy := self.node.receive_nowait(Copy, sender=address):
                    self.take(index, copy)
            stale = self.clocks[index] < max(0, need)
            if stale and (not self.eager or self.clocks[index] < 0):  # eager: only the first touch asks
                await self.node.send(address, Read(max(0, need)))
            while self.clocks[index] < max(0, need):
                self.take(index, await self.node.receive(Copy, sender=address))
        oldest = min(self.clocks)
        await self.node.note("staleness", self.node.step - oldest)
        self.own = [(step, change) for step, change in self.own if step >= oldest]

    def take(self, index: int, copy: Copy) -> None:
        """Replace the copy, and keep one's own changes that are not in it: read-my-writes."""
        assert copy.clock >= self.clocks[index], "a copy never goes back in time"
        piece = self.replica.flat.cut(self.pieces[index]).copy_(copy.params)
        for step, change in self.own:
            if step >= copy.mine:
                piece.add_(change.cut(self.pieces[index]))
        self.clocks[index] = copy.clock

    async def push(self, change: Vector) -> None:
        self.own.append((self.node.step, change))
        samples = self.replica.batch.samples
        for index, address in enumerate(self.servers):
            # nothing answers before the next forward changes them
            buffers = self.replica.buffers.clone() if index == 0 else Vector(())
            piece = change.cut(self.pieces[index])
            await self.node.send(address, Change(self.node.step, samples, piece, buffers), loan=True)


async def worker(node: Node, replica: Replica, *, count: int, bound: int, share: float, eager: bool) -> None:
    """Read when the copy is too old, step on it, push the change."""
    cache = Cache(node, replica, count, bound, eager)
    while node.training():
        await cache.refresh()
        grad = await replica.gradient(node)
        before = replica.flat.clone()
        replica.apply(grad, share)
        await cache.push(replica.flat - before)
    await node.broadcast(cache.servers, Retire())
    for address in cache.servers:  # let what an eager server sent before it knew arrive
        while not isinstance(await node.receive_any(Copy, Retired, sender=address), Retired):
            pass


@dataclass(slots=True)
class Clocks:
    """How many steps each worker has done that still trains."""

    done: dict[int, int]

    @property
    def slowest(self) -> int:
        return min(self.done.values(), default=0)


class Table:
    """One server: a piece of the parameters to which changes are added."""

    def __init__(self, node: Node, replica: Replica, index: int, eager: bool) -> None:
        self.node, self.replica, self.eager, self.first = node, replica, eager, index == 0
        self.clocks = node.remember(Clocks(dict.fromkeys(range(node.workers), 0))).value
        self.params = replica.flat.cut(replica.trained)
        self.parked: dict[int, Read] = {}
        self.readers: set[int] = set()
        self.left: set[int] = set()  # not remembered: after a restart all say it anew, and wait for the answer
        self.told = 0

    async def serve(self) -> None:
        while len(self.left) < self.node.workers:
            message = await self.node.receive_any(Read, Change, Retire)
            rank = message.sender.rank
            if isinstance(message, Read):
                self.parked[rank] = message
                self.readers.add(rank)
            elif isinstance(message, Change):
                await self.add(rank, message)
            else:
                self.clocks.done.pop(rank, None)
                self.readers.discard(rank)
                self.left.add(rank)
                await self.node.send(message.sender, Retired())
            await self.answer()

    async def add(self, rank: int, message: Change) -> None:
        self.params.add_(message.change)
        self.clocks.done[rank] += 1
        self.replica.seen += message.samples
        if self.first:
            await self.node.note("update")
            if self.replica.buffers.parts:
                self.replica.buffers.lerp_(message.buffers, 1 / self.node.workers)

    async def answer(self) -> None:
        for rank in sorted(self.parked):
            if self.parked[rank].clock <= self.clocks.slowest:
                del self.parked[rank]
                await self.give(rank)
        if self.eager and self.clocks.slowest > self.told:
            self.told = self.clocks.slowest
            for rank in sorted(self.readers - self.parked.keys()):
                await self.give(rank)

    async def give(self, rank: int) -> None:
        copy = Copy(self.clocks.slowest, self.clocks.done[rank], self.params)
        await self.node.send(Address("worker", rank), copy)


async def server(node: Node, replica: Replica, *, index: int, count: int, eager: bool) -> None:
    """Hold one piece of the parameters until every worker has retired."""
    replica.keep(replica.pieces(count)[index], buffers=index == 0)
    await Table(node, replica, index, eager).serve()


def cached(name: str, bound: int, weight: float | None, eager: bool, workers: int) -> Strategy:
    """The family: SSP with a copy at each worker."""
    if bound < 0:
        raise PlanError(f"{name}(bound={bound}): the bound is a number of steps, 0 or more")
    share = 1 / workers if weight is None else weight
    if share <= 0:
        raise PlanError(f"{name}(weight={weight}): a change must count something; leave it away for 1/{workers}")

    def roles(workers: int, servers: int) -> list[Role]:
        work = partial(worker, count=servers, bound=bound, share=share, eager=eager)
        return workers_and_servers(workers, work, servers, partial(server, eager=eager))

    return Strategy(
        name=name, settings={"bound": bound, "weight": share}, roles=roles, servers=1,
        scored="the servers' parameters", rate="each change counts 1/workers; momentum is each worker's own",
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

    def strategy(self, workers: int) -> Strategy:
        return cached("petuum", self.bound, self.weight, eager=False, workers=workers)


@dataclass(frozen=True, kw_only=True, slots=True)
class Essp:
    """Eager stale synchronous: servers send new parameters whenever the slowest worker has ticked; nobody asks."""

    bound: int = 3
    weight: float | None = None  # what a change counts; 1 / workers

    def strategy(self, workers: int) -> Strategy:
        return cached("essp", self.bound, self.weight, eager=True, workers=workers)
