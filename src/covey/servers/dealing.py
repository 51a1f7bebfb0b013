"""Batches by request: a worker that seldom hears from the servers asks the first one for each batch, a step ahead.

A batch that comes a second time, because somebody has had it and is gone, counts only where it has not come. So steps
of such workers are only compared: one that enters goes on with the smallest that a server tells it, unless its kind
says otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from covey.data.leases import BatchSet, Lease
from covey.membership import Joined
from covey.message import Message
from covey.servers.leasing_server import LeasingServer
from covey.servers.standing import AskStanding, complete
from covey.servers.taking_part import NONE_LEFT, NOTHING_LEASED, EntryStep, TakesPart


class AskLease(Message):
    """The sender asks for the batch of a step; all servers have all of its steps before `settled`."""

    wire_name = "dealt.ask"

    step: int
    settled: int

    counted = False


class DealtLease(Message):
    """The batch of a step, and whether somebody has had it before; the samples that its worker, and all, have done.

    Also how many workers there are.
    """

    wire_name = "dealt.lease"

    step: int
    seat: int
    number: int
    again: bool
    done: int
    seen: int
    workers: int

    counted = False


class AskingClient(TakesPart):
    """A client that asks for its batches; a kind of it says how far all servers have what it sent."""

    asked = -1  # the step for which a batch was asked last
    settled = 0  # all servers have all steps before this one
    again = False  # somebody has had this batch before
    workers = 0

    async def ask_batch(self) -> None:
        step = self.node.step
        await self._ask(step)
        given = await self.node.receive(DealtLease, sender=self.servers[0], step=step)
        self.lease, self.again = Lease(given.seat, given.number), given.again
        self.done, self.workers = given.done, given.workers
        if self.lease.seat == NONE_LEFT:
            return
        if not self.told:
            self.replica.progress.reach(given.seen)
        await self._ask(step + 1)

    async def _ask(self, step: int) -> None:
        if self.asked != step:
            self.asked = step
            await self.node.send(self.servers[0], AskLease(step, self.settled))

    def begin_update(self) -> None:
        """For a schedule, the samples of this step are those of all workers that are there."""
        self.replica.progress.begin(self.replica.batch.samples * self.workers)

    async def _rest(self) -> bool:
        await complete(self.node, self.servers)
        return await super()._rest()

    async def _entered(self) -> bool:
        self.asked = -1
        return await super()._entered()

    def first_step(self, entries: Sequence[EntryStep]) -> int:
        return min(entry.step for entry in entries)


class DealingServer(LeasingServer):
    """A server of such clients."""

    def __init__(self, *given: Any, **settings: Any) -> None:
        super().__init__(*given, **settings)
        self.dealt = BatchSet.empty(self.node.workers)
        self.hears |= {AskLease: self.deal}

    async def tell_standing(self, message: Joined | AskStanding) -> None:
        """A new incarnation may begin at another step than its predecessor: it has nothing, and asks."""
        if isinstance(message, Joined):
            self.ledger.release(message.sender.rank, self.known)
        await super().tell_standing(message)

    async def deal(self, ask: AskLease) -> None:
        rank, ledger = ask.sender.rank, self.ledger
        ledger.settle(rank, ask.settled)
        lease = ledger.take(rank, ask.step)
        again, done = lease is not None and not self.dealt.add(lease), ledger.before(rank, ask.step)
        seen, (seat, number) = sum(ledger.done), lease or NOTHING_LEASED
        await self.node.send(ask.sender, DealtLease(ask.step, seat, number, again, done, seen, self.present))

    def ticked(self, rank: int, step: int, counters: tuple[int, ...] = ()) -> None:
        """A worker has done a step."""
        self.heard(rank, step, counters)
        self.taking_part[rank] = max(self.taking_part[rank], step + 1)
