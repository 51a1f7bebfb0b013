"""TensorFlow's tokens: one server issues them, and a worker with a token may read everywhere (Abadi et al. 2016).

If each server counted its own, two workers could take the last one of a server each, and wait for the other's for ever.
"""

from __future__ import annotations

from collections.abc import Collection

from covey.central.server.shard import Push, Shard, ShardPolicy
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

    only_rule = False

    def __init__(
        self, node: Node, replica: Replica, *, keeping: ShardPolicy, clients: Collection[int], count: int
    ) -> None:
        super().__init__(node, replica, keeping=keeping, clients=clients, count=count)
        self.tokens: dict[int, int] = {}  # the version of each worker's token, until its gradient comes
        self.hears[ReadToken] = self.be_told

    async def be_told(self, token: ReadToken) -> None:
        self.tokens[token.rank] = token.version

    async def take(self, push: Push) -> None:
        push.version = self.tokens.pop(push.sender.rank)
        await super().take(push)

    async def left(self, who: Address) -> None:
        self.give_back(who.rank)
        await super().left(who)

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
                await self.node.broadcast(self.servers[1:], ReadToken(rank, self.tokens[rank]))
