"""`+ auto` with servers: clients send samples with every codec to find the one that pays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from covey.exchange.auto import Trying
from covey.exchange.codec import Coder
from covey.message import Address, Message
from covey.program import Node
from covey.vector import Vector


class Sample(Message):
    """A gradient that counts for nothing, encoded."""

    wire_name = "trials.sample"

    wire: Vector


class Sampled(Message):
    """A sample has arrived, and was decoded."""

    wire_name = "trials.sampled"
    counted = False


class CodecTrials:
    """A client's choice, for all of its servers; others may choose otherwise, as their links may differ."""

    def __init__(
        self, node: Node, addresses: Sequence[Address], coders: Sequence[Coder], memories: Sequence[Any]
    ) -> None:  # fmt: skip
        self.node, self.addresses, self.coders, self.memories = node, addresses, coders, memories
        self.trying = Trying(node)

    async def choose(self, pieces: Sequence[Vector]) -> None:
        """Before the second push, with what is to be pushed."""
        since = await self.trying.rest()
        if since is None:
            return

        async def act(number: int) -> None:
            for address, coder, piece in zip(self.addresses, self.coders, pieces, strict=True):
                wire, _ = coder.encode(piece, [number, None])
                await self.node.send(address, Sample(wire))
            for address in self.addresses:
                await self.node.receive(Sampled, sender=address)

        times = await self.trying.measured(act)
        rest = max(0.0, since - times[0])  # a push is sent while its worker goes on, so the first one was in that time
        choice = await self.trying.decide(rest, times, tells=self.node.address == Address("worker", 0))
        for memory in self.memories:
            memory.value = [choice, None]


class Samples:
    """A server's side. Where its clients step together it answers them together, as the last one counts there."""

    def __init__(self, node: Node, coder: Coder, together: bool) -> None:
        self.node, self.coder, self.together = node, coder, together
        self.came: list[Address] = []

    async def hear(self, sample: Sample) -> None:
        self.coder.decode(sample.wire)
        self.came.append(sample.sender)

    async def answer(self, clients: int) -> None:
        """When all who are still there have sent theirs."""
        if not self.came or (self.together and len(self.came) < clients):
            return
        for who in self.came:
            await self.node.send(who, Sampled())
        self.came.clear()
