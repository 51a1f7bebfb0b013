"""A worker of parameter servers that comes while others train, and may go: the first server says which batch it does.

A worker that finds no batch left takes no part until there is one again, because another worker has gone with its own,
or until all are done. A worker that enters is counted by every server from a step on that none of them has passed.
"""

from __future__ import annotations

from collections.abc import Sequence

from covey.central.server.client import Servers, worker
from covey.central.server.shard import Params, Push
from covey.data.leases import Lease
from covey.exchange.codec import Codec, dense
from covey.message import Address, Message
from covey.model.replica import Replica
from covey.program import Node
from covey.servers.leased_batches import leased_gradient
from covey.servers.standing import complete
from covey.vector import Vector

NONE_LEFT = -1  # in place of a seat
NOTHING_LEASED = Lease(NONE_LEFT, 0)


class LeasedParams(Params):
    """The parameters; from the first server also the batch to do, and the samples that its worker has done before."""

    wire_name = "leased.params"

    seat: int = NONE_LEFT
    number: int = 0
    done: int = 0


class LeasedPush(Push):
    """A gradient, and the batch that it is of."""

    wire_name = "leased.push"

    seat: int = NONE_LEFT
    number: int = 0


class OutOfBatches(Message):
    """The sender has all parameters of this step, and no batch: it takes no part from here on."""

    wire_name = "leased.out"

    step: int

    counted = False


class BatchesLeft(Message):
    """To one that takes no part: there are batches again, or all are done."""

    wire_name = "leased.left"

    over: bool

    counted = False


class AskEntry(Message):
    """The sender would take part again."""

    wire_name = "leased.ask_entry"

    life: int

    counted = False


class EntryStep(Message):
    """The sender counts a worker from this step on; `pushed`: a gradient of it has come since it entered.

    `entries` says how often it has entered. One that has entered less often here than elsewhere owes nothing here: it
    had all parameters when it last stopped to take part.
    """

    wire_name = "leased.entry"

    life: int
    step: int
    pushed: bool
    entries: int
    over: bool
    buffers: Vector

    counted = False


class LeasedServers(Servers):
    """The servers as a worker sees them that comes while others train, and may go."""

    answers = LeasedParams

    def __init__(self, node: Node, replica: Replica, addresses: Sequence[Address], codec: Codec = dense) -> None:
        super().__init__(node, replica, addresses, codec)
        self.told = not node.life.number  # whoever watches knows how many samples this worker has done
        self.done = 0
        self.lease = NOTHING_LEASED  # the batch to do

    def answered(self, index: int, params: Params) -> None:
        assert isinstance(params, LeasedParams)
        if index == 0:
            self.done = params.done
            self.lease = Lease(params.seat, params.number)

    def parcel(self, push: Push) -> Push:
        lease = self.lease
        return LeasedPush(
            push.step, push.version, push.samples, push.grad, push.buffers, seat=lease.seat, number=lease.number
        )

    async def enter(self) -> bool:
        """Begin; in a new life at the step that the servers say. False: the run is over."""
        if not self.node.life.number:
            return self.node.training()
        if any(server in self.node.life.ended for server in self.servers):
            return False
        await self.note_residuals()
        return await self._entered()

    async def batch(self) -> bool:
        """Bring the newest parameters, and a batch to do at them; False: none will come."""
        await self.pull()
        if not self.told:
            self.told = True
            await self.node.note("resumed", self.done)
        while self.lease.seat == NONE_LEFT:
            if not await self._rest():
                return False
            await self.pull()
        return True

    async def _rest(self) -> bool:
        """Take no part until there is a batch; False: all are done."""
        await self.node.broadcast(self.servers, OutOfBatches(self.node.step))
        word = await self.node.receive(BatchesLeft, sender=self.servers[0])
        if word.over:
            return False
        await self.node.broadcast(self.servers, AskEntry(self.node.life.number))
        return await self._entered()

    async def _entered(self) -> bool:
        """Go on at the first step that this worker can do with all servers."""
        entries = []
        for server in self.servers:
            entries.append(entry := await self._entry(server))
            while self.node.receive_nowait(LeasedParams, BatchesLeft, sender=server):
                pass
            if entry.buffers.parts:
                self.replica.buffers.copy_(entry.buffers)
        if any(entry.over for entry in entries):
            return False
        step = first_step(entries)
        while self.node.step < step:
            if not self.node.training():
                return False
        return True

    async def _entry(self, server: Address) -> EntryStep:
        while (found := await self.node.receive(EntryStep, sender=server)).life != self.node.life.number:
            pass
        return found


def first_step(entries: Sequence[EntryStep]) -> int:
    """Where a worker goes on that these servers count.

    Before its first gradient that is the furthest of their steps, so that it is behind none. What some servers have had
    of it, and others not, it does again.
    """
    newest = max(entry.entries for entry in entries)
    pushed = [entry.step for entry in entries if entry.pushed and entry.entries == newest]
    return max(entry.step for entry in entries) if not pushed else min(pushed) - (len(pushed) < len(entries))


async def leased_worker(node: Node, replica: Replica, *, servers: Sequence[Address], codec: Codec, clip: bool) -> None:
    """Pull, differentiate the batch that the first server names, push."""
    store = LeasedServers(node, replica, servers, codec)
    going = await store.enter()
    while going and await store.batch():
        await store.push(await leased_gradient(node, replica, store.lease, clip))
        if not node.training():
            await complete(node, servers)
            break
    await store.leave()


async def any_worker(node: Node, replica: Replica, *, servers: Sequence[Address], codec: Codec, clip: bool) -> None:
    """The program of a worker, in a run of a fixed number of workers or in one to which they come and go."""
    program = leased_worker if node.life.leased else worker
    await program(node, replica, servers=servers, codec=codec, clip=clip)
