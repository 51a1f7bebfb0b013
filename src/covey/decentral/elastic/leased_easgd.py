"""Elastic averaging with workers that come and go: with the centre the master gives out the batches until the next one.

A batch is settled when the force that its worker felt after it has moved the centre. What a worker has learned since
its last exchange goes with it, and others do those batches again.
"""

from __future__ import annotations

import torch

from covey.data.leases import Lease, Ledger
from covey.decentral.elastic.centre import MASTER, CentreMaster, Elastic, ElasticForce, Trend, move
from covey.exchange.codec import Codec
from covey.membership import Joined
from covey.message import Address, Message
from covey.model.replica import Replica
from covey.observe.tally import AcceptedSamples
from covey.program import Node
from covey.servers.goodbye import Goodbye
from covey.servers.leased_batches import leased_gradient
from covey.servers.standing import AskStanding
from covey.servers.taking_part import BatchCounters, furthest_counters
from covey.vector import Vector


class AskBatches(Message):
    """A worker has done its batches, and asks for the centre and more; one in a new incarnation for those it had."""

    wire_name = "elastic.ask_batches"

    again: bool
    counters: tuple[int, ...]  # the sender's


class CentreBatches(Message):
    """The centre, and batches to do before the next exchange: none when all are done.

    Also how many workers there are, and the samples that this one, and all, have done before.
    """

    wire_name = "elastic.batches"

    model: Vector
    seats: tuple[int, ...]
    numbers: tuple[int, ...]
    workers: int
    done: int
    seen: int
    counters: tuple[int, ...]  # the largest that a worker has told

    @property
    def leases(self) -> list[Lease]:
        return [Lease(seat, number) for seat, number in zip(self.seats, self.numbers, strict=True)]


class LeasingMaster(CentreMaster):
    """Moves the centre by each force as it comes, and deals out the batches."""

    def __init__(self, node: Node, replica: Replica, *, codec: Codec, period: int) -> None:
        super().__init__(node, replica, codec=codec)
        source, seats = replica.batch_source, range(node.workers)
        limits = [limit or 0 for limit in node.limits]
        self.ledger, self.period = Ledger(limits, [source.steps(seat) for seat in seats], source.samples), period
        self.next = [0] * node.workers  # step of each worker
        self.begun = [0] * node.workers  # the first step of what it was given last
        self.parked: dict[int, AskBatches] = {}
        self.counters: tuple[int, ...] = ()
        self.hears = {AskBatches: self.ask, Elastic: self.move}

    async def ask(self, ask: AskBatches) -> None:
        self.parked[ask.sender.rank] = ask
        if not ask.again:
            self.counters = furthest_counters(self.counters, ask.counters)

    async def move(self, elastic: Elastic) -> None:
        await super().move(elastic)
        rank = elastic.sender.rank
        self.ledger.settle(rank, self.begun[rank])

    async def settle(self) -> None:
        """Serve those who ask; one for whom nothing is left waits until it is known that nobody gives anything back."""
        for rank in sorted(self.parked):
            if leases := self.granted(rank, self.parked[rank].again):
                del self.parked[rank]
                await self.give(rank, leases)
        busy = any(held for rank, held in enumerate(self.ledger.held) if rank not in self.parked)
        if self.parked and (self.ledger.closed or not busy):
            for rank in sorted(self.parked):
                self.ledger.settle(rank)  # nothing follows its last steps, as without changes
                await self.give(rank, [])
            self.parked.clear()

    def granted(self, rank: int, again: bool) -> list[Lease]:
        """The next batches of a worker; for a new incarnation those that its predecessor had not settled."""
        held = self.ledger.held[rank]
        if again and held:
            self.begun[rank] = min(held)
            return [held[step] for step in sorted(held)]
        first, found = self.next[rank], list[Lease]()
        while len(found) < self.period and (lease := self.ledger.take(rank, self.next[rank])):
            found.append(lease)
            self.next[rank] += 1
        if found:
            self.begun[rank] = first
        return found

    async def give(self, rank: int, leases: list[Lease]) -> None:
        seats, numbers = tuple(lease.seat for lease in leases), tuple(lease.number for lease in leases)
        workers, done = self.node.workers - len(self.ledger.empty), self.ledger.before(rank, self.begun[rank])
        to, seen = Address("worker", rank), sum(self.ledger.done)
        model = self.told.tell(self.replica.model, rank)
        await self.node.send(to, CentreBatches(model, seats, numbers, workers, done, seen, self.counters))

    async def tell_standing(self, message: Joined | AskStanding) -> None:
        rank = message.sender.rank
        self.gone.discard(message.sender)
        self.parked.pop(rank, None)
        self.ledger.join(rank)

    async def left(self, who: Address) -> None:
        if self.ledger.held[who.rank]:
            self.ledger.closed = True  # it had more to do: the run ends here

    async def departed(self, who: Address) -> None:
        self.parked.pop(who.rank, None)
        self.ledger.leave(who.rank, known=lambda lease: False)
        await self.node.note("accepted", AcceptedSamples(self.ledger.done[who.rank], who))


async def leased_worker(
    node: Node, replica: Replica, *, pull: float, momentum: float, adapt: bool, codec: Codec
) -> None:
    """With each centre do the batches that came with it; the force is measured before the first of them."""
    velocity = replica.flat.map(torch.zeros_like) if momentum else Vector(())
    elastic_force = ElasticForce(node, replica, codec)
    counters = BatchCounters(replica.layout)
    trend = Trend([pull, 0.0, 0.0, 0.0], pull, ceiling=1.9 / (node.workers + 1))
    again, going = node.incarnation.enters, MASTER not in node.incarnation.ended
    while going and (given := await node.ask(MASTER, AskBatches(again, counters.read()), CentreBatches)).seats:
        if again:
            counters.write(given.counters)
            await begin_at(node, replica, given)
        force, wire = elastic_force.force(given.model, trend.pull() if adapt else pull)
        await node.send(MASTER, Elastic(wire), loan=True)
        for number, lease in enumerate(given.leases):
            if not (going := node.training()):
                break
            if momentum:
                replica.flat.add_(velocity.mul_(momentum))
            grad = await leased_gradient(node, replica, lease)
            replica.progress.begin(replica.batch.samples * given.workers)
            move(replica, grad, velocity, momentum)
            await node.note("update")
            trend.add(replica.batch.loss)
            if number == 0:
                replica.model.add_(force, alpha=-1)
        again = False
    await node.send(MASTER, Goodbye())


async def begin_at(node: Node, replica: Replica, given: CentreBatches) -> None:
    """A new incarnation takes the centre, and counts as having done what its predecessors did."""
    replica.model.copy_(given.model)
    replica.progress.reach(given.seen)
    await node.note("resumed", given.done)
