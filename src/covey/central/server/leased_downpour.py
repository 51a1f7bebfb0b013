"""A Downpour worker that comes while others train, and may go: the first server says which batch it does.

A push is the sum of several gradients, which a server adds or not. So a batch that somebody has had before is pushed
alone: a server that has had it, in whatever sum, drops it, and all others add it.
"""

from __future__ import annotations

from typing import Any

import torch

from covey.central.server.store import Accrued, Fetched, Store
from covey.data.leases import Lease
from covey.exchange.codec import Codec
from covey.exchange.filters import Filter
from covey.model.replica import Replica
from covey.program import Node
from covey.servers.dealing import AskingClient, DealtLease
from covey.servers.leased_batches import leased_gradient
from covey.servers.standing import complete


class LeasedAccrued(Accrued):
    """What a worker gathered, and the batches that it is of."""

    wire_name = "leased.accrued"

    seats: tuple[int, ...] = ()
    numbers: tuple[int, ...] = ()
    counters: tuple[int, ...] = ()  # its worker's

    @property
    def leases(self) -> list[Lease]:
        return [Lease(seat, number) for seat, number in zip(self.seats, self.numbers, strict=True)]


class LeasedStore(AskingClient, Store):
    """The shards, and the sum that was gathered for them."""

    stale = (Fetched, DealtLease)

    def __init__(self, *given: Any, **settings: Any) -> None:
        super().__init__(*given, **settings)
        self.gathered = self.replica.grad.map(torch.zeros_like)
        self.leases: list[Lease] = []  # of what was gathered since the last push
        self.samples = self.unpushed = 0  # of these; the first step of which nothing was pushed

    async def fetch(self) -> None:
        before = self.unpushed
        await super().fetch()
        self.settled = before  # shards answer in the order in which they are spoken to

    async def gather(self) -> None:
        """Add the gradient of the batch to the sum; one that somebody has had before is a sum of its own."""
        if self.again:
            await self.flush(self.node.step - 1)
        self.gathered.add_(await leased_gradient(self.node, self.replica, self.lease))
        self.leases.append(self.lease)
        self.samples += self.replica.batch.samples

    async def flush(self, step: int) -> None:
        """Push what was gathered up to this step."""
        if self.leases:
            await self.push(self.gathered, self.samples, len(self.leases), step)
            self.leases, self.samples, self.unpushed = [], 0, step + 1

    def parcel(self, accrued: Accrued) -> Accrued:
        fields = {name: getattr(accrued, name) for name in Accrued.__struct_fields__ if name != "sender"}
        seats, numbers = tuple(lease.seat for lease in self.leases), tuple(lease.number for lease in self.leases)
        return LeasedAccrued(**fields, seats=seats, numbers=numbers, counters=self.counters.read())

    async def _rest(self) -> bool:
        await self.flush(self.node.step - 1)
        return await super()._rest()


async def leased_worker(
    node: Node, replica: Replica, *, count: int, push: int, fetch: int, sieve: Filter, codec: Codec
) -> None:  # fmt: skip
    """As without leases, on the batches that the first shard names."""
    store = LeasedStore(node, replica, count, codec, sieve)
    going = await store.enter()
    while going and await store.batch():
        if node.step % fetch == 0 or not store.fetched:
            await store.fetch()
        await store.gather()
        if store.again or node.step % push == 0:
            await store.flush(node.step)
        store.begin_update()
        replica.apply(replica.grad)
        if not node.training():
            await store.flush(node.step - 1)
            await complete(node, store.servers)
            break
    await store.leave()
