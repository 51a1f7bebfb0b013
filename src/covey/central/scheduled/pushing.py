"""A worker's companion that sends gradients during computation: the most urgent slice first, within its credit."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Sequence

from covey.central.scheduled.slices import Confirmed, Gradient, Slice, SliceOrder, of_slot, span
from covey.central.scheduled.tuning import Setting
from covey.exchange.codec import Coder
from covey.message import Address, Message
from covey.model.replica import Replica
from covey.program import Node
from covey.vector import Vector


class GradientReady(Message):
    """The gradient of a parameter is made (from a worker to itself)."""

    wire_name = "pushing.ready"

    step: int
    slot: int
    urgency: int
    grad: Vector

    counted = False


class PushRequest(Message):
    """A worker wants to push to a server."""

    wire_name = "pushing.wish"
    counted = False


class Turn(Message):
    """It may, with one slice."""

    wire_name = "pushing.turn"
    counted = False


def posting(node: Node, urgency: Callable[[int], int], step: int) -> Callable[[int, Vector, float], None]:
    """(On the compute thread) Hand gradients over to the role's own program, as soon as backward has made them."""

    def ready(slot: int, grad: Vector, progress: float) -> None:
        node.host.post(GradientReady(step, slot, urgency(slot), grad, sender=node.address), progress)

    return ready


class Pushing:
    """What waits to be pushed, and the program that pushes it."""

    def __init__(
        self, node: Node, replica: Replica, servers: Sequence[Address], slices: Sequence[Slice], manner: SliceOrder,
        coders: Sequence[Coder],
    ) -> None:  # fmt: skip
        self.node, self.replica, self.servers, self.slices, self.manner = node, replica, servers, slices, manner
        self.coders = coders  # one for each slice
        self.memories = node.remember("codecs", [coder.memory for coder in coders])
        self.of_slot = of_slot(slices)
        self.queue: list[tuple[int, int, Gradient]] = node.remember("queue", []).value  # sorted
        self.setting = Setting(1, manner.credit or 0)
        self.under_way = 0  # bytes that no server has confirmed
        self.wished: set[int] = set()
        self.turns: set[int] = set()  # servers to which this worker may push
        self.serial = 0

    async def run(self) -> None:
        await self.push()
        while True:
            self.hear(await self.node.receive_any(GradientReady, Confirmed, Turn))
            await self.push()

    def hear(self, message: Message) -> None:
        if isinstance(message, GradientReady):
            self.take(message)
        elif isinstance(message, Confirmed):
            self.under_way = max(0, self.under_way - message.size)
        else:
            self.turns.add(message.sender.rank)
            self.wished.discard(message.sender.rank)

    def take(self, ready: GradientReady) -> None:
        """Put the slices of a gradient in line, as many together as the setting says."""
        places = self.of_slot[ready.slot]
        begin, numbers = self.slices[places[0]].start, ready.grad.parts[0]
        first = ready.urgency if self.manner.order == "layers" else 0
        for place in places[:: self.setting.together]:
            count, self.serial = min(self.setting.together, places[-1] + 1 - place), self.serial + 1
            where = span(self.slices, place, count)
            grad = Vector([numbers[where.start - begin : where.stop - begin]])
            if count == 1:  # a codec sees each slice by itself, and so always in slices of one size
                grad, self.memories.value[place] = self.coders[place].encode(grad, self.memories.value[place])
            insort(self.queue, (first, self.serial, Gradient(ready.step, place, ready.urgency, grad, count)))

    async def push(self) -> None:
        """Send what may leave, the most urgent first; what has become ready meanwhile may overtake."""
        while (gradient := await self.next()) is not None:
            if self.setting.credit:
                self.under_way += gradient.grad.nbytes
            priority = -gradient.urgency if self.manner.order == "layers" else 0
            server = self.slices[gradient.place].server
            self.turns.discard(server)
            await self.replica.updates.inform(self.node, self.servers[server])
            await self.node.send(self.servers[server], gradient, loan=True, priority=priority)
            while ready := self.node.receive_nowait(GradientReady):
                self.take(ready)

    async def next(self) -> Gradient | None:
        """The slice that goes next, if one may."""
        credit = self.setting.credit
        if self.manner.flows:
            await self.wish()
        for place, (_, _, gradient) in enumerate(self.queue):
            if self.manner.flows and self.slices[gradient.place].server not in self.turns:
                continue
            # one larger than all credit goes alone
            if credit and self.under_way and self.under_way + gradient.grad.nbytes > credit:
                return None
            return self.queue.pop(place)[2]
        return None

    async def wish(self) -> None:
        """Ask for a turn at every server for which something waits."""
        waiting = {self.slices[gradient.place].server for _, _, gradient in self.queue}
        for server in sorted(waiting - self.wished - self.turns):
            self.wished.add(server)
            await self.node.send(self.servers[server], PushRequest(), priority=1)
