"""A client of servers that takes part while there are batches: it comes while others train, and may go.

A worker that finds no batch left takes no part until there is one again, because another worker has gone with its own,
or until all are done. A worker that enters is counted by every server from a step on that none of them has passed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from covey.data.leases import Lease
from covey.membership import BatchesLeft
from covey.message import Address, Message
from covey.model.flat import Flat
from covey.model.slots import buffers_of
from covey.servers.clients import PieceClient
from covey.vector import Vector

NONE_LEFT = -1  # in place of a seat
NOTHING_LEASED = Lease(NONE_LEFT, 0)


class OutOfBatches(Message):
    """The sender's steps have come to all servers, and it has no batch: it takes no part from here on."""

    wire_name = "leased.out"

    step: int

    counted = False


class AskEntry(Message):
    """The sender would take part again."""

    wire_name = "leased.ask_entry"

    incarnation: int

    counted = False


class EntryStep(Message):
    """The sender counts a worker from this step on; `pushed`: a gradient of it has come since it entered.

    `entries` says how often it has entered. One that has entered less often here than elsewhere owes nothing here: it
    had all parameters when it last stopped to take part.
    """

    wire_name = "leased.entry"

    incarnation: int
    step: int
    pushed: bool
    entries: int
    over: bool
    buffers: Vector
    counters: tuple[int, ...]  # the largest that a worker has told, if any has

    counted = False


class BatchCounters:
    """The counters among a model's buffers, as batch normalization has one of batches: each worker's are its own."""

    def __init__(self, layout: Flat) -> None:
        found = buffers_of(layout.modules).values()
        self._places = [(owner, key) for owner, key, one in found if one.dtype == torch.int64 and one.numel() == 1]

    def read(self) -> tuple[int, ...]:
        return tuple([int(owner._buffers[key]) for owner, key in self._places])  # type: ignore[arg-type]  # one is there

    def write(self, counts: Sequence[int]) -> None:
        """Go on with those of other workers, if they have told any."""
        for (owner, key), count in zip(self._places, counts, strict=False):
            owner._buffers[key].fill_(count)  # type: ignore[union-attr]  # one is there


def furthest_counters(some: tuple[int, ...], others: tuple[int, ...]) -> tuple[int, ...]:
    """The larger of each."""
    return tuple(map(max, some, others)) if some and others else some or others


class TakesPart(PieceClient):
    """The servers as a worker sees them that comes while others train, and may go."""

    stale: ClassVar[tuple[type[Message], ...]]  # answers that a server gave before it let this worker enter
    told = False  # whoever watches knows how many samples this worker has done
    done = 0  # these samples
    lease = NOTHING_LEASED  # the batch to do

    def __init__(self, *given: Any, **settings: Any) -> None:
        super().__init__(*given, **settings)
        self.counters = BatchCounters(self.replica.layout)

    async def enter(self) -> bool:
        """Begin; in a new incarnation at the step that the servers say. False: the run is over."""
        incarnation = self.node.incarnation
        if incarnation.closing:
            return False
        if not incarnation.number:
            self.told = True
            if not incarnation.resumed:
                return self.node.training()
            await self.node.broadcast(self.servers, AskEntry(incarnation.number))
        if any(server in incarnation.ended for server in self.servers):
            return False
        await self.note_residuals()
        return await self._entered()

    async def batch(self) -> bool:
        """Bring what a step needs, and a batch to do; False: none will come."""
        await self.ask_batch()
        if not self.told:
            self.told = True
            await self.node.note("resumed", self.done)
        while self.lease.seat == NONE_LEFT:
            if not await self._rest():
                return False
            await self.ask_batch()
        return True

    async def ask_batch(self) -> None:
        """Find out the batch of this step; after it all servers have all steps before the last one."""
        raise NotImplementedError

    async def _rest(self) -> bool:
        """Take no part until there is a batch; False: all are done."""
        await self.node.broadcast(self.servers, OutOfBatches(self.node.step))
        word = await self.node.receive(BatchesLeft, sender=self.servers[0])
        if word.over:
            return False
        await self.node.broadcast(self.servers, AskEntry(self.node.incarnation.number))
        return await self._entered()

    async def _entered(self) -> bool:
        """Go on at the first step that this worker can do with all servers."""
        entries = []
        for server in self.servers:
            entries.append(entry := await self._entry(server))
            while self.node.receive_nowait(*self.stale, BatchesLeft, sender=server):
                pass
            if entry.buffers.parts:
                self.replica.buffers.copy_(entry.buffers)
            if not self.told:
                self.counters.write(entry.counters)
        if any(entry.over for entry in entries):
            return False
        step = self.first_step(entries)
        while self.node.step < step:
            if not self.node.training():
                return False
        return True

    def first_step(self, entries: Sequence[EntryStep]) -> int:
        """Where to go on with servers that count this worker from these steps on."""
        return first_step(entries)

    async def _entry(self, server: Address) -> EntryStep:
        while (found := await self.node.receive(EntryStep, sender=server)).incarnation != self.node.incarnation.number:
            pass
        return found


def first_step(entries: Sequence[EntryStep]) -> int:
    """Where a worker goes on that these servers count.

    Before its first gradient that is the furthest of their steps, so that it is behind none. What some servers have had
    of it, and others not, it does again.
    """
    newest = max(entry.entries for entry in entries)
    pushed = [entry.step for entry in entries if entry.pushed and entry.entries == newest]
    return max(entry.step for entry in entries) if not pushed else min(pushed) - (len(pushed) < len(entries))
