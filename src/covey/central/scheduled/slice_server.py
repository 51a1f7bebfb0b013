"""A server of slices: it updates a slice, and sends it back, as soon as all workers have pushed it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from covey.central.scheduled.pushing import PushRequest, Turn
from covey.central.scheduled.slices import (
    Confirmed,
    Gradient,
    SliceOrder,
    Statistics,
    Updated,
    form,
    runs,
    slices,
    span,
    view,
)
from covey.central.scheduled.stepping import Stepping
from covey.exchange.codec import Codec, seed
from covey.message import Address
from covey.model.replica import Replica
from covey.program import Node
from covey.servers.clipping import clip_part
from covey.servers.pulls import pulls
from covey.servers.roles import addresses
from covey.servers.server_program import ServerProgram
from covey.vector import Vector, mean_


@dataclass(frozen=True, slots=True)
class Fresh:
    """Neighbouring slices whose gradient of a step is whole: the first of them, how many, and how urgent they are."""

    step: int
    place: int
    count: int
    urgency: int


class SliceServer(ServerProgram):
    """One server: slices of the parameters, each updated as soon as every worker's gradient for it is there."""

    def __init__(self, node: Node, replica: Replica, *, count: int, manner: SliceOrder, codec: Codec) -> None:
        super().__init__(node, replica)
        self.manner, self.peers, self.first = manner, addresses(count), node.rank == 0
        self.slices = slices(replica, manner, count)
        mine = [place for place, where in enumerate(self.slices) if where.server == node.rank]
        # where workers wait for their turns, those would stand in line behind the updates
        together = bool(manner.flows)
        self.stepping = Stepping(replica, self.slices, mine, buffers=self.first, together=together)
        forms = {place: form(replica, self.slices[place]) for place in mine}
        self.coders = {place: codec.made(forms[place], seed(node, place)) for place in mine}
        self.pulls = {place: pulls(node, forms[place], codec, together=True, name=f"pull {place}") for place in mine}
        self.came: dict[int, dict[int, Vector]] = {place: {} for place in mine}
        self.whole: list[Fresh] = []  # of this step, what every worker has pushed
        self.statistics: dict[int, dict[int, Statistics]] = {}  # of a step, by rank: some may be a step ahead
        self.pushing: set[int] = set()
        self.wishes: deque[Address] = deque()
        self.hears = {Gradient: self.take, Statistics: self.hear_statistics, PushRequest: self.wish}

    async def wish(self, request: PushRequest) -> None:
        self.wishes.append(request.sender)

    async def left(self, who: Address) -> None:
        self.pushing.discard(who.rank)

    async def settle(self) -> None:
        """Let those push whose turn it is."""
        while self.wishes and len(self.pushing - {self.wishes[0].rank}) < self.manner.flows:
            self.pushing.add(self.wishes[0].rank)
            await self.node.send(self.wishes.popleft(), Turn(), priority=1)

    async def take(self, gradient: Gradient) -> None:
        """Lay a gradient to those of the others; slices that now have all of them are stepped on and given back.

        Workers that change their partitions, one before the other, send slices that are whole at different times.
        """
        self.pushing.discard(gradient.sender.rank)
        if self.manner.credit != 0:
            await self.node.send(gradient.sender, Confirmed(gradient.grad.nbytes), priority=1)
        present = self.node.present(gradient.step)
        for place, grad in self.parts(gradient):
            self.came[place][gradient.sender.rank] = grad
        samples = [self.replica.batch_source.samples(rank, gradient.step) for rank in present]
        places = range(gradient.place, gradient.place + gradient.count)
        ready = [place for place in places if len(self.came[place]) == len(present)]
        if ready:
            self.replica.updates.follow(self.node, [(Address("worker", rank), gradient.step) for rank in present])
        for place, count in runs(ready):
            for whole in range(place, place + count):
                grads = [self.coders[whole].decode(self.came[whole][rank]) for rank in present]
                mean_(view(self.replica.grad, self.slices[whole]), grads, samples)
                self.came[whole].clear()
            self.whole.append(Fresh(gradient.step, place, count, gradient.urgency))
            if self.stepping.apart:
                self.stepping.step(range(place, place + count))
                await self.give(self.whole[-1], present)
        if sum(fresh.count for fresh in self.whole) == len(self.came):
            await self.end_step(gradient.step, present, sum(samples))

    def parts(self, gradient: Gradient) -> list[tuple[int, Vector]]:
        """What came of each slice, as it came."""
        if gradient.count == 1:
            return [(gradient.place, gradient.grad)]
        places = range(gradient.place, gradient.place + gradient.count)
        begin, numbers = self.slices[gradient.place].start, gradient.grad
        ends = [(self.slices[place].start - begin, self.slices[place].stop - begin) for place in places]
        return [(place, numbers.cut((end,))) for place, end in zip(places, ends, strict=True)]

    async def end_step(self, step: int, present: Sequence[int], samples: int) -> None:
        """All slices of a step are there; here they are also stepped on, where none could be alone."""
        in_order = self.manner.order != "fifo"
        whole = sorted(self.whole, key=lambda fresh: fresh.urgency if in_order else 0)
        self.whole.clear()
        await self.note_update([0])
        if not self.stepping.apart:
            await clip_part(self.node, self.replica, self.replica.grad.cut(self.replica.trained), step, self.peers)
            self.replica.update()
            self.replica.progress.add(samples)
            for fresh in whole:
                await self.give(fresh, present)
        else:
            self.replica.progress.add(samples)

    async def give(self, fresh: Fresh, present: Sequence[int]) -> None:
        """Send the new numbers to all who took part; lent where nobody can change them before all have them."""
        numbers = view(self.replica.flat, span(self.slices, fresh.place, fresh.count))
        given = self.pulls[fresh.place].give(0, numbers, fresh.step)
        updated = Updated(fresh.step, fresh.place, given.wire, whole=given.whole, count=fresh.count)
        lent = self.node.present(fresh.step + 1) == present
        priority = 0 if self.manner.order == "fifo" else -fresh.urgency
        for rank in present:
            await self.node.send(Address("worker", rank), updated, loan=lent, priority=priority)

    async def hear_statistics(self, message: Statistics) -> None:
        """Keep the mean of all workers' float buffers of a step."""
        present = self.node.present(message.step)
        came = self.statistics.setdefault(message.step, {})
        came[message.sender.rank] = message
        if len(came) == len(present):
            del self.statistics[message.step]
            self.keep_buffers([came[rank].buffers for rank in present])
