"""The shards of a store that workers fetch from and push to in periods of their own, and their messages."""

from __future__ import annotations

from covey.exchange import filters
from covey.exchange.codec import Codec
from covey.exchange.filters import Filter, KeyCache
from covey.message import Message
from covey.model.replica import Replica
from covey.model.scored import NOTHING
from covey.program import Node
from covey.servers.clients import PieceClient
from covey.servers.pulls import Received
from covey.servers.roles import addresses
from covey.servers.standing import remembered
from covey.vector import Vector


class FetchParameters(Message):
    """A worker asks a shard for its parameters."""

    wire_name = "store.fetch"

    step: int

    counted = False


class Fetched(Message):
    wire_name = "store.fetched"

    step: int
    version: int
    params: Vector
    whole: int = 1  # else they are what has changed, encoded


class Accrued(Message):
    """What a worker gathered for a shard since its last push: all, as a codec writes it, or `values` at `keys`."""

    wire_name = "store.accrued"

    step: int
    version: int  # of the shard, when the worker last fetched
    samples: int
    signature: int  # of the keys; 0 without any
    keys: Vector
    values: Vector
    buffers: Vector
    gradients: int = 1  # of which it is the sum


class Store(PieceClient):
    """The shards as a worker sees them."""

    def __init__(
        self, node: Node, replica: Replica, count: int, codec: Codec, sieve: Filter = filters.everything
    ) -> None:  # fmt: skip
        super().__init__(node, replica, addresses(count), codec)
        self.sieve, self.caches = sieve, [KeyCache() for _ in self.servers]
        self.versions = node.remember("versions", [0] * count).value
        # a new incarnation has only the initial parameters
        self._fetched = remembered(node, "fetched", not node.incarnation.number)
        self.received = Received(node, self.forms, codec)

    @property
    def fetched(self) -> bool:
        """Whether this incarnation has parameters of the servers."""
        return self._fetched.value

    async def fetch(self) -> None:
        step, self._fetched.value = self.node.step, True
        await self.node.broadcast(self.servers, FetchParameters(step))
        for index, shard in enumerate(self.servers):
            fetched = await self.received.receive(Fetched, index, self.place(index), shard, step)
            self.versions[index] = fetched.version

    async def push(self, gathered: Vector, samples: int, gradients: int = 1, step: int | None = None) -> None:
        """Send what the filter lets through of the sum of this many gradients; what must wait stays in `gathered`.

        Its step is that of the last gradient in it: the current one unless told.
        """
        step = self.node.step if step is None else step
        for index, shard in enumerate(self.servers):
            piece, signature = gathered.cut(self.pieces[index]), 0
            masks = self.sieve.pick(piece * (1 / gradients), piece, self.place(index), self.node.rng)
            keys, values = filters.gather(piece, masks) if masks is not None else (NOTHING, self.encode(index, piece))
            if masks is not None and self.sieve.caches:
                signature, keys = self.caches[index].shorten(keys)
            version, buffers = self.versions[index], self.buffers(index)
            parcel = self.parcel(Accrued(step, version, samples, signature, keys, values, buffers, gradients))
            await self.replica.updates.inform(self.node, shard)
            await self.node.send(shard, parcel)
            if masks is None or not self.sieve.waits:
                piece.zero_()
            else:
                for part, mask in zip(piece.parts, masks.parts, strict=True):
                    part[mask] = 0

    def parcel(self, accrued: Accrued) -> Accrued:
        """What travels with a push."""
        return accrued
