"""A Petuum worker that comes while others train, and may go: the first server says which batch it does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from covey.central.cached.cache import Cache, CachedChange, ParameterCopy, worker
from covey.exchange.codec import Codec
from covey.model.replica import Replica
from covey.program import Node
from covey.servers.dealing import AskingClient, DealtLease
from covey.servers.goodbye import Goodbye
from covey.servers.leased_batches import leased_gradient
from covey.servers.standing import complete
from covey.servers.taking_part import EntryStep


class LeasedChange(CachedChange):
    """What a worker's step changed, and the batch that it is of."""

    wire_name = "leased.change"

    seat: int = 0
    number: int = 0
    counters: tuple[int, ...] = ()  # its worker's


class LeasedCache(AskingClient, Cache):
    """A copy of the parameters that is read anew whenever its worker enters."""

    stale = (ParameterCopy, DealtLease, Goodbye)

    def __init__(self, *given: Any, **settings: Any) -> None:
        super().__init__(*given, **settings)
        self.arrived = [0] * len(self.servers)  # the steps that each server is known to have

    async def _entered(self) -> bool:
        self.clocks, self.own = [-1] * len(self.servers), []
        return await super()._entered()

    def first_step(self, entries: Sequence[EntryStep]) -> int:
        """The furthest: a server that counts this worker as further would say that it has steps that were not sent."""
        return max(entry.step for entry in entries)

    def take(self, index: int, copy: ParameterCopy) -> None:
        super().take(index, copy)
        self.arrived[index] = copy.mine
        self.settled = min(self.arrived)

    def parcel(self, change: CachedChange) -> CachedChange:
        seat, number = self.lease
        return LeasedChange(
            change.step, change.samples, change.change, change.buffers, seat=seat, number=number,
            counters=self.counters.read(),
        )  # fmt: skip


async def leased_worker(
    node: Node, replica: Replica, *, count: int, bound: int, share: float, eager: bool, codec: Codec
) -> None:  # fmt: skip
    """Ask for a batch, read when the copy is too old, step on it, push the change."""
    cache = LeasedCache(node, replica, count, bound, eager, codec)
    going = await cache.enter()
    while going and await cache.batch():
        await cache.refresh()
        grad = await leased_gradient(node, replica, cache.lease)
        cache.begin_update()
        before = replica.flat.clone()
        replica.apply(grad, share)
        await cache.push(before)
        if not node.training():
            await complete(node, cache.servers)
            break
    await cache.part()


async def any_worker(node: Node, replica: Replica, **settings: Any) -> None:
    """The program of a worker, in a run of a fixed number of workers or in one to which they come and go."""
    await (leased_worker if node.incarnation.leased else worker)(node, replica, **settings)
