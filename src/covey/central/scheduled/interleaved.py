"""Partitions that workers sum among themselves, the first layers' first: bytescheduler over all-reduce.

Each is summed as soon as backward has made it, several at once as far as the credit reaches, and the next forward
begins while sums go on. All workers must begin the same sums, or they would wait for one another: the first worker
takes the most urgent partition that is ready in its place, and tells the others (Peng et al. 2019: one of them decides
on the order). The numbers are those of allreduce(pattern=scatter).
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from functools import partial
from itertools import groupby

from torch import Tensor

from covey.central.scheduled.parameter_gates import Gated
from covey.central.scheduled.pushing import GradientReady, posting
from covey.central.scheduled.slices import Slice, SliceOrder, of_slot, slices, span, view
from covey.central.scheduled.stepping import Stepping, lying
from covey.central.scheduled.tuning import Setting, Tuning
from covey.exchange.collectives.concurrent import ConcurrentSum
from covey.exchange.collectives.sums import scatter_gather
from covey.message import Address, Message
from covey.model.replica import Replica
from covey.program import Node
from covey.strategy import GROW, Description, Role, Strategy, TaskTerms, Taxonomy
from covey.vector import Vector


class Begin(Message):
    """The first worker of a step says which neighbouring slices are summed next, and how urgent they are."""

    wire_name = "interleaved.begin"

    step: int
    place: int
    count: int
    urgency: int

    counted = False


class Summed(Message):
    """A sum has ended (from a worker to itself)."""

    wire_name = "interleaved.summed"
    counted = False


class SliceSums:
    """One worker's gradients on their way into sums, and the program that begins those."""

    def __init__(self, node: Node, replica: Replica, all_slices: Sequence[Slice]) -> None:
        self.node, self.replica, self.slices = node, replica, all_slices
        self.of_slot = of_slot(all_slices)
        self.setting = Setting(1, 0)
        self.ready: dict[int, Tensor] = {}  # by the place of a slice: what no sum has taken yet, and all beside it
        self.line: list[tuple[int, int, Begin]] = []  # sorted: what this worker, being the first, has not begun
        self.told: list[Begin] = []  # what the first has begun, and this worker has no gradient for yet
        self.under_way = 0  # bytes
        self.serial = 0
        # by place: steps, and means of gradients
        self.done: dict[int, tuple[int, Vector]] = node.remember("means", {}).value

    async def run(self) -> None:
        while True:
            message = await self.node.receive_any(GradientReady, Begin)
            if isinstance(message, Begin):
                self.told.append(message)
            else:
                assert isinstance(message, GradientReady)
                self.take(message)
            await self.go_on()

    def take(self, ready: GradientReady) -> None:
        """Let sums have a gradient; the first worker puts it in line."""
        places = self.of_slot[ready.slot]
        self.ready |= dict.fromkeys(places, ready.grad.parts[0])
        if self.node.members(ready.step)[0] != self.node.address:
            return
        for place in places[:: self.setting.together]:
            count, self.serial = min(self.setting.together, places[-1] + 1 - place), self.serial + 1
            insort(self.line, (ready.urgency, self.serial, Begin(ready.step, place, count, ready.urgency)))

    async def go_on(self) -> None:
        """Begin what may begin: what is told, and of one's own line the most urgent while there is credit."""
        able = [begin for begin in self.told if begin.place in self.ready]
        self.told = [begin for begin in self.told if begin.place not in self.ready]
        for begin in able:
            await self.node.spawn(self.sum(begin, self.pop(begin)))
        while self.line and self.fits(self.line[0][2]):
            begin = self.line.pop(0)[2]
            mine = self.pop(begin)
            self.under_way += mine.nbytes
            for peer in self.node.members(begin.step)[1:]:
                await self.node.send(peer, begin, priority=1)
            await self.node.spawn(self.sum(begin, mine))

    def fits(self, begin: Begin) -> bool:
        """Whether there is credit; what is larger than all of it goes alone."""
        size = view(self.replica.flat, span(self.slices, begin.place, begin.count)).nbytes
        return not self.setting.credit or not self.under_way or self.under_way + size <= self.setting.credit

    def pop(self, begin: Begin) -> Vector:
        """This worker's gradient for a sum, which from here on is the sum's."""
        slot = self.slices[begin.place].slot
        where, first = span(self.slices, begin.place, begin.count), self.slices[self.of_slot[slot][0]].start
        found = [self.ready.pop(place) for place in range(begin.place, begin.place + begin.count)]
        return Vector([found[0][where.start - first : where.stop - first]])

    async def sum(self, begin: Begin, grad: Vector) -> None:
        """Make it the mean over all workers' samples."""
        batch_source, step, group = self.replica.batch_source, begin.step, self.node.members(begin.step)
        share = batch_source.samples(self.node.rank, step) / batch_source.together(self.node.present(step), step)
        await scatter_gather(self.lane(step, begin.place, begin.urgency), grad.mul_(share), group)
        first = self.slices[begin.place].start
        for place in range(begin.place, begin.place + begin.count):
            where = self.slices[place]
            self.done[place] = step, grad.cut(((where.start - first, where.stop - first),))
        if group[0] == self.node.address:
            self.under_way -= grad.nbytes
        await self.node.send(self.node.address, Summed())
        await self.go_on()

    def lane(self, step: int, place: int, urgency: int) -> ConcurrentSum:
        """For a sum that no other can be mistaken for."""
        return ConcurrentSum(self.node, 1 + step * (len(self.slices) + 1) + place, -urgency)

    async def mean_buffers(self, step: int) -> None:
        """Let everybody have the mean of all workers' float buffers, before the next forward changes them."""
        if buffers := self.replica.buffers.parts:
            group = self.node.members(step)
            lane = self.lane(step, len(self.slices), 0)
            await scatter_gather(lane, Vector(buffers).mul_(1 / len(group)), group)


class Weights:
    """A worker's parameters, slice by slice: which update each of them has. They change only while nothing computes."""

    def __init__(self, node: Node, replica: Replica, sums: SliceSums) -> None:
        self.node, self.replica, self.sums = node, replica, sums
        everything = range(len(sums.slices))
        self.stepping = Stepping(replica, sums.slices, everything, buffers=True)
        self.have = node.remember("have", [-1] * len(sums.slices)).value  # the step whose update each slice holds
        self.done = node.remember("done", [-1]).value  # the last step whose gradient was made
        self.shown: Vector | None = None  # of the worker that is scored: as of the last step that all slices hold
        if node.rank == 0:
            self.shown = replica.flat.clone()
            replica.show(self.shown.join(replica.buffers))

    def fresh(self, slot: int) -> bool:
        return all(self.have[place] >= self.done[0] for place in self.sums.of_slot[slot])

    async def freshen(self, slots: Sequence[int]) -> None:
        """Wait for the last update of these parameters."""
        await self.step()
        while not all(map(self.fresh, slots)):
            await self.node.receive(Summed)
            await self.step()

    async def step(self) -> None:
        """Step on what is summed; where no slice can be alone, when all are."""
        while self.node.receive_nowait(Summed):
            pass
        summed, before = dict(sorted(self.sums.done.items())), min(self.have)
        if not summed or (len(summed) < len(self.have) and not self.stepping.apart):
            return
        self.sums.done.clear()
        self.replica.updates.follow(self.node, [(self.node.address, max(step for step, _ in summed.values()))])
        for place, (step, grad) in summed.items():
            view(self.replica.grad, self.sums.slices[place]).copy_(grad)
            self.have[place] = step
        by_slot = [list(places) for _, places in groupby(summed, key=lambda place: self.sums.slices[place].slot)]
        with lying(self.replica, [self.sums.slices[places[0]].slot for places in by_slot]):
            if self.stepping.apart:
                for places in by_slot:
                    self.stepping.step(places)
            else:
                self.replica.updates.clip_(self.replica.grad)
                self.replica.update()
        if min(self.have) > before:
            await self.ended(min(self.have))

    async def ended(self, step: int) -> None:
        """All slices have the update of a step."""
        present = self.node.present(step)
        self.replica.progress.add(self.replica.batch_source.together(present, step))
        if self.shown:
            self.shown.copy_(self.replica.flat)
        if self.node.rank == present[0]:
            await self.node.note("update")
            await self.node.note("staleness", 0)


async def worker(node: Node, replica: Replica, *, manner: SliceOrder) -> None:
    """Differentiate as soon as the first layer is fresh, and sum gradients while that goes on."""
    sums = SliceSums(node, replica, slices(replica, manner, 1))
    weights, everything = Weights(node, replica, sums), range(len(replica.layout.slots))
    gated = Gated(node, replica, weights.fresh, weights.freshen)
    tuning = Tuning(node, manner.grid(replica), manner.smallest(replica))
    await node.spawn(sums.run())
    for step in node.steps():
        sums.setting = await tuning.setting(step)
        await weights.step()
        if gated.blind:
            await weights.freshen(everything)
        batch = await gated.compute(step, posting(node, gated.urgency, step))
        weights.done[0] = step
        await replica.report(node, batch)
        replica.progress.begin(0)  # what of it is stepped on by slices is counted when all are
        await sums.mean_buffers(step)
    await weights.freshen(everything)


def interleaved(name: str, manner: SliceOrder, settings: dict[str, object]) -> Strategy:
    """The strategy: workers only, each with the whole model and its optimizer."""

    def roles(workers: int, servers: int) -> list[Role]:
        work = partial(worker, manner=manner)
        return [
            Role(Address("worker", rank), work, trains=True, scored=rank == 0, one_batch=True)
            for rank in range(workers)
        ]

    return Strategy(
        name=name, settings=settings, roles=roles,
        description=Description(
            scored="worker 0's model: all are the same", rate="unchanged: the mean over all workers' samples",
            scaling=GROW,
        ),
        terms=TaskTerms(clips="each update"),
        taxonomy=Taxonomy(
            optimization="central", architecture="peers", scheduling="synchronous", exchange="all-reduce",
            topology="complete",
        ),
    )  # fmt: skip
