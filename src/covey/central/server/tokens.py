"""TensorFlow's tokens: one server issues them, and a worker with a token may read everywhere (Abadi et al. 2016).

If each server counted its own, two workers could take the last one of a server each, and wait for the other's for ever.
"""

from __future__ import annotations

from collections.abc import Sequence

from covey.central.roles import addresses
from covey.central.server.shard import LeaveShard, Push, Shard, ShardPolicy
from covey.message import Address, Message
from covey.model.replica import Replica
from covey.program import Node


class ReadToken(Message):
    """(From the first server to the others) This worker may read, and its next gradient is one of this version."""

    wire_name = "tokens.token"

    rank: int
    version: int

    counted = False


class TokenShard(Shard):
    """A server whose gradients are of the version of their worker's token, whatever it may have been given since."""

    hears = (*Shard.hears, ReadToken)

    def __init__(
        self, node: Node, replica: Replica, keeping: ShardPolicy, clients: int, shards: Sequence[Address]
    ) -> None:
        super().__init__(node, replica, keeping, range(clients), shards)
        self.tokens: dict[int, int] = {}  # the version of each worker's token, until its gradient comes

    async def hear(self, message: Message) -> None:
        if isinstance(message, ReadToken):
            self.tokens[message.rank] = message.version
            return
        if isinstance(message, Push):
            message.version = self.tokens.pop(message.sender.rank)
        elif isinstance(message, LeaveShard):
            self.give_back(message.sender.rank)
        await super().hear(message)

    def give_back(self, rank: int) -> None:
        """A worker that found no step to do leaves its token to others."""
        if self.tokens.pop(rank, None) == self.board.version == self.board.taken[0]:
            self.board.taken[1] -= 1

    def admits(self, rank: int) -> bool:
        if not self.first:
            return rank in self.tokens and self.tokens[rank] <= self.board.version
        if admitted := super().admits(rank):
            self.tokens[rank] = self.board.version
        return admitted

    async def answer(self) -> None:
        parked = list(self.parked)
        await super().answer()
        for rank in parked:
            if self.first and rank not in self.parked:
                await self.node.broadcast(self.shards[1:], ReadToken(rank, self.tokens[rank]))


async def server(node: Node, replica: Replica, *, index: int, count: int, clients: int, keeping: ShardPolicy) -> None:
    """Hold one piece of the parameters until every worker has left."""
    replica.keep(replica.pieces(count)[index], buffers=index == 0)
    await TokenShard(node, replica, keeping, clients, addresses(count)).serve()
