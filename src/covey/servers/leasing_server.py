"""A server whose workers come and go; the first server deals out the batches."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from covey.data.leases import BatchSet, Lease, LeaseRecord, Ledger
from covey.membership import BatchesLeft, Joined
from covey.message import Address
from covey.model.scored import NOTHING
from covey.observe.tally import AcceptedSamples
from covey.servers.pieces import PieceServer
from covey.servers.standing import AskStanding
from covey.servers.taking_part import AskEntry, EntryStep, OutOfBatches, furthest_counters


@dataclass(slots=True)
class EnteredWorkers:
    """What a server knows of workers that came after the beginning; it survives a restart."""

    entries: dict[int, int]  # how often each has entered
    unheard: set[int] = field(default_factory=set)  # nothing of these has come since they entered


class LeasingServer(PieceServer):
    """What a server does besides where workers come and go; the first one keeps the ledger of batches."""

    def __init__(self, *given: Any, **settings: Any) -> None:
        super().__init__(*given, **settings)
        node, source = self.node, self.replica.batch_source
        limits, steps = [limit or 0 for limit in node.limits], [source.steps(seat) for seat in range(node.workers)]
        leases = node.remember("leases", LeaseRecord.begin(node.workers)).value
        self.ledger = Ledger(limits, steps, source.samples, leases)
        self.received = node.remember("received", BatchSet.empty(node.workers)).value
        entered = node.remember("entered", EnteredWorkers({})).value
        self.unheard, self.entries = entered.unheard, entered.entries
        self.idle: set[int] = set()  # there was no batch for these
        self.called: set[int] = set()  # of those, the ones that will ask to enter
        self.furthest = max(self.taking_part.values(), default=0)
        self.counters: tuple[int, ...] = ()
        self.hears |= {OutOfBatches: self.rest, AskEntry: self.admit}

    @property
    def taking_part(self) -> dict[int, int]:
        """The next step of each worker that takes part."""
        raise NotImplementedError

    def enter(self, rank: int, step: int) -> None:
        """Count a worker from this step on."""
        self.taking_part[rank] = step

    def drop_out(self, rank: int) -> None:
        """Wait for this worker no more."""
        self.taking_part.pop(rank, None)

    def entry(self, rank: int) -> int:
        """The step at which a worker enters here."""
        return min(self.taking_part.values(), default=self.furthest)

    @property
    def team(self) -> int:
        return max(1, len(self.taking_part))

    @property
    def present(self) -> int:
        """How many seats are taken."""
        return self.node.workers - len(self.ledger.empty)

    def heard(self, rank: int, step: int, counters: tuple[int, ...] = ()) -> None:
        """Something of a worker's step has come, with its counters."""
        self.counters = furthest_counters(self.counters, counters)
        self.unheard.discard(rank)
        self.furthest = max(self.furthest, step + 1)

    def known(self, lease: Lease) -> bool:
        """Whether a batch is done: with other servers nobody knows whether they have had the last gradients."""
        return len(self.servers) == 1 and lease in self.received

    async def tell_standing(self, message: Joined | AskStanding) -> None:
        if isinstance(message, AskStanding):
            return await super().tell_standing(message)
        self.gone.discard(message.sender)
        self.forget_requests(message.sender.rank)
        await self.admit(message)

    async def admit(self, message: Any) -> None:
        """Count a worker from now on, if it is not counted, and tell it the step."""
        who = message.sender
        rank, over = who.rank, who in self.finished
        if rank not in self.taking_part and not over:
            self.enter(rank, self.entry(rank))
            self.unheard.add(rank)
            self.entries[rank] = self.entries.get(rank, 0) + 1
        self.idle.discard(rank)
        self.called.discard(rank)
        self.ledger.join(rank)
        step, pushed = self.taking_part.get(rank, 0), rank not in self.unheard
        buffers = self.replica.buffers if self.first else NOTHING
        await self.node.send(
            who, EntryStep(message.incarnation, step, pushed, self.entries.get(rank, 0), over, buffers, self.counters)
        )

    async def rest(self, out: OutOfBatches) -> None:
        """A worker has nothing to do: nobody waits for it. All servers have what it sent."""
        rank = out.sender.rank
        self.forget_requests(rank)
        self.drop_out(rank)
        self.ledger.settle(rank)
        self.idle.add(rank)

    async def departed(self, who: Address) -> None:
        rank = who.rank
        for ranks in (self.unheard, self.idle, self.called):
            ranks.discard(rank)
        self.ledger.leave(rank, self.known)
        if self.first:
            await self.node.note("accepted", AcceptedSamples(self.ledger.done[rank], who))
        await super().departed(who)

    async def left(self, who: Address) -> None:
        if who.rank in self.taking_part and who in self.finished:
            self.ledger.closed = True  # it had more to do: the run ends here
        self.drop_out(who.rank)
        await super().left(who)

    async def settle(self) -> None:
        await super().settle()
        if not self.first or not self.idle:
            return
        more = self.ledger.open
        if more or self.ledger.closed or not (self.taking_part or self.called):
            for rank in sorted(self.idle):
                await self.node.send(Address("worker", rank), BatchesLeft(not more))
            self.called, self.idle = {*self.idle} if more else set(), set()
