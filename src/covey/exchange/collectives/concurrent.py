"""Several sums at once, each on its own channel, so that their chunks do not mix."""

from __future__ import annotations

from typing import Literal, TypeVar

from covey.exchange.collectives.sums import Chunk
from covey.message import Address, Message
from covey.program import Node, Send
from covey.vector import Vector

M = TypeVar("M", bound=Message)

ROUNDS = 2  # of the longest pattern on a lane, scatter_gather


class ConcurrentSum(Node):
    """A node on which one sum speaks: its chunks are numbered, and as urgent as it is."""

    __slots__ = ("first", "priority")

    def __init__(self, node: Node, number: int, priority: int = 0) -> None:
        super().__init__(node.address, node.limits, node.host, node.rng, node.seed)
        self.first, self.priority = number * ROUNDS, priority

    def send(
        self, to: Address, body: Message, *, loan: bool = False, priority: int = 0,
        keep: Literal["all", "latest"] = "all", lossy: bool = False, paced: bool = False,
    ) -> Send:  # fmt: skip
        assert isinstance(body, Chunk) and 0 <= body.step < ROUNDS, "a lane is for a short sum"
        assert priority == 0, "a sum is as urgent as its lane"
        chunk = Chunk(self.first + body.step, body.part)
        return super().send(to, chunk, loan=loan, priority=self.priority, keep=keep, lossy=lossy, paced=paced)

    async def receive(
        self, kind: type[M], *, sender: Address | None = None, step: int | None = None, into: Vector | None = None
    ) -> M:
        assert step is not None, "a lane is for a sum"
        return await super().receive(kind, sender=sender, step=self.first + step, into=into)
