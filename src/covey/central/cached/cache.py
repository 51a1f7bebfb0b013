"""A Petuum worker's copy of the parameters, and its messages to the servers."""

from __future__ import annotations

from covey.exchange.codec import Codec, dense
from covey.message import Message
from covey.model.replica import Replica
from covey.program import Node
from covey.servers.clients import PieceClient
from covey.servers.goodbye import Goodbye
from covey.servers.pulls import Given, Received
from covey.servers.roles import addresses
from covey.servers.standing import complete
from covey.vector import Vector


class ReadParameters(Message):
    """A worker asks for parameters that hold every change of the first `clock` steps of all workers."""

    wire_name = "cache.read"

    clock: int


class ParameterCopy(Message):
    """The parameters when every worker had done `clock` steps, with the first `mine` changes of the one they go to."""

    wire_name = "cache.copy"

    clock: int
    mine: int
    params: Vector
    whole: int = 1  # else they are what has changed, encoded


class CachedChange(Message):
    """What a worker's step changed, already scaled to count its share."""

    wire_name = "cache.change"

    step: int
    samples: int
    change: Vector
    buffers: Vector


class Cache(PieceClient):
    """A worker's copy: the servers' parameters as of some clock, and one's own changes that they do not hold yet."""

    def __init__(
        self, node: Node, replica: Replica, count: int, bound: int, eager: bool, codec: Codec = dense
    ) -> None:  # fmt: skip
        super().__init__(node, replica, addresses(count), codec, named=addresses(count))
        self.bound, self.eager = bound, eager
        self.clocks = [-1] * count  # what was read; nothing yet
        self.received = Received(node, self.forms, codec)
        while copy := node.receive_nowait(ParameterCopy):
            self.read(copy.sender.rank, copy)  # of before a restart, after which a server knows its readers no more
        self.own: list[tuple[int, Vector]] = []  # changes by step that some server's copy may lack

    async def refresh(self) -> None:
        """See to it that the copy is at most `bound` clocks old: the gate is on the read (Ho et al. 2013)."""
        need = self.node.step - self.bound
        for index, address in enumerate(self.servers):
            if self.eager:
                while copy := self.node.receive_nowait(ParameterCopy, sender=address):
                    self.take(index, copy)
            stale = self.clocks[index] < max(0, need)
            if stale and (not self.eager or self.clocks[index] < 0):  # eager: only the first touch asks
                await self.node.send(address, ReadParameters(max(0, need)))
            while self.clocks[index] < max(0, need):
                self.take(index, await self.node.receive(ParameterCopy, sender=address))
        oldest = min(self.clocks)
        await self.node.note("staleness", self.node.step - oldest)
        self.own = [(step, change) for step, change in self.own if step >= oldest]

    def take(self, index: int, copy: ParameterCopy) -> None:
        """Replace the copy, and keep one's own changes that are not in it: read-my-writes."""
        assert copy.clock >= self.clocks[index], "a copy never goes back in time"
        piece = self.place(index).copy_(self.read(index, copy))
        for step, change in self.own:
            if step >= copy.mine:
                piece.add_(change.cut(self.pieces[index]))
        self.clocks[index] = copy.clock

    def read(self, index: int, copy: ParameterCopy) -> Vector:
        """A server's parameters, whether they came whole or as what has changed."""
        return self.received.read(index, Given(copy.params, copy.whole))

    async def push(self, before: Vector) -> None:
        """Give servers what has changed since then; one's own copy has from now on what they will have."""
        change = self.replica.flat - before
        wires = [self.encode(index, change.cut(piece)) for index, piece in enumerate(self.pieces)]
        if not self.codec.traits.plain:
            for coder, piece, wire in zip(self.coders, self.pieces, wires, strict=True):
                change.cut(piece).copy_(coder.decode(wire))
            self.replica.flat.copy_(before).add_(change)
        self.own.append((self.node.step, change))
        samples = self.replica.batch.samples
        for index, address in enumerate(self.servers):
            buffers = self.buffers(index).clone()  # nothing answers before the next forward changes them
            parcel = self.parcel(CachedChange(self.node.step, samples, wires[index], buffers))
            await self.node.send(address, parcel, loan=True)

    def parcel(self, change: CachedChange) -> CachedChange:
        """What travels with a change."""
        return change

    async def part(self) -> None:
        """Say goodbye, and let what an eager server sent before it knew arrive."""
        await self.leave()
        for address in self.servers if not self.node.incarnation.ended else ():
            while not isinstance(await self.node.receive_any(ParameterCopy, Goodbye, sender=address), Goodbye):
                pass


async def worker(
    node: Node, replica: Replica, *, count: int, bound: int, share: float, eager: bool, codec: Codec
) -> None:  # fmt: skip
    """Read when the copy is too old, step on it, push the change."""
    cache = Cache(node, replica, count, bound, eager, codec)
    if await cache.rejoin(ParameterCopy):
        while node.training():
            await cache.refresh()
            grad = await replica.gradient(node)
            before = replica.flat.clone()
            replica.apply(grad, share)
            await cache.push(before)
        await complete(node, cache.servers)
    await cache.part()
