"""A worker's companion that sends gradients while it computes: the most urgent slice next, within credit and turns."""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence

from covey.central.slices import Confirmed, Gradient, Manner, Slice, of_slot
from covey.exchange.codec import Coder
from covey.message import Address, Message
from covey.program import Node
from covey.vector import Vector


class Ready(Message):
    """The gradient of a parameter is made (from a worker to itself)."""

    step: int
    slot: int
    urgency: int
    grad: Vector

    counted = False


class Wish(Message):
    """A worker wants to push to a server."""

    counted = False


class Turn(Message):
    """It may, with one slice."""

    counted = False


class Pushing:
    """What waits to be pushed, and the program that pushes it."""

    def __init__(
        self, node: Node, servers: Sequence[Address], slices: Sequence[Slice], manner: Manner, coders: Sequence[Coder]
    ) -> None:
        self.node, self.servers, self.slices, self.manner = node, servers, slices, manner
        self.coders = coders  # one for each slice
        self.memories = node.remember([coder.memory for coder in coders])
        self.of_slot = of_slot(slices)
        self.queue: list[tuple[int, int, Gradient]] = node.remember([]).value  # sorted
        self.credit = manner.credit
        self.under_way = 0  # bytes that no server has confirmed
        self.wished: set[int] = set()
        self.turns: set[int] = set()  # servers to which this worker may push
        self.serial = 0

    async def run(self) -> None:
        await self.push()
        while True:
            self.hear(await self.node.receive_any(Ready, Confirmed, Turn))
            await self.push()

    def hear(self, message: Message) -> None:
        if isinstance(message, Ready):
            self.take(message)
        elif isinstance(message, Confirmed):
            self.under_way = max(0, self.under_way - message.size)
        else:
            self.turns.add(message.sender.rank)
            self.wished.discard(message.sender.rank)

    def take(self, ready: Ready) -> None:
        """Put the slices of a gradient in line."""
        places = self.of_slot[ready.slot]
        begin, numbers = self.slices[places[0]].start, ready.grad.parts[0]
        for place in places:
            where, self.serial = self.slices[place], self.serial + 1
            memories, part = self.memories.value, Vector([numbers[where.start - begin : where.stop - begin]])
            grad, memories[place] = self.coders[place].encode(part, memories[place])
            first = ready.urgency if self.manner.order == "layers" else 0
            insort(self.queue, (first, self.serial, Gradient(ready.step, place, ready.urgency, grad)))

    async def push(self) -> None:
        """Send what may leave, the most urgent first; what has become ready meanwhile may overtake."""
        while (gradient := await self.next()) is not None:
            if self.credit:
                self.under_way += gradient.grad.nbytes
            priority = -gradient.urgency if self.manner.order == "layers" else 0
            server = self.slices[gradient.place].server
            self.turns.discard(server)
            await self.node.send(self.servers[server], gradient, loan=True, priority=priority)
            while ready := self.node.receive_nowait(Ready):
                self.take(ready)

    async def next(self) -> Gradient | None:
        """The slice that goes next, if one may."""
        if self.manner.flows:
            await self.wish()
        for place, (_, _, gradient) in enumerate(self.queue):
            if self.manner.flows and self.slices[gradient.place].server not in self.turns:
                continue
            # one larger than all credit goes alone
            if self.credit and self.under_way and self.under_way + gradient.grad.nbytes > self.credit:
                return None
            return self.queue.pop(place)[2]
        return None

    async def wish(self) -> None:
        """Ask for a turn at every server for which something waits."""
        waiting = {self.slices[gradient.place].server for _, _, gradient in self.queue}
        for server in sorted(waiting - self.wished - self.turns):
            self.wished.add(server)
            await self.node.send(self.servers[server], Wish(), priority=1)
