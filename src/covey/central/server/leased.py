"""A worker of parameter servers that comes while others train, and may go: with the parameters comes its batch."""

from __future__ import annotations

from collections.abc import Sequence

from covey.central.server.client import Servers, worker
from covey.central.server.shard import Params, Push
from covey.data.leases import Lease
from covey.exchange.codec import Codec
from covey.message import Address
from covey.model.replica import Replica
from covey.program import Node
from covey.servers.leased_batches import leased_gradient
from covey.servers.standing import complete
from covey.servers.taking_part import NONE_LEFT, TakesPart


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
    counters: tuple[int, ...] = ()  # its worker's


class LeasedServers(TakesPart, Servers):
    """The servers as a worker sees them that comes while others train, and may go."""

    answers = LeasedParams
    stale = (LeasedParams,)

    def answered(self, index: int, params: Params) -> None:
        assert isinstance(params, LeasedParams)
        if index == 0:
            self.done = params.done
            self.lease = Lease(params.seat, params.number)

    def parcel(self, push: Push) -> Push:
        lease = self.lease
        return LeasedPush(
            push.step, push.version, push.samples, push.grad, push.buffers, seat=lease.seat, number=lease.number,
            counters=self.counters.read(),
        )  # fmt: skip

    async def ask_batch(self) -> None:
        await self.pull()


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
    program = leased_worker if node.incarnation.leased else worker
    await program(node, replica, servers=servers, codec=codec, clip=clip)
