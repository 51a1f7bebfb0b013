"""Bösen's servers: they add rows as they arrive, and send changed rows back unasked, the most changed first.

As workers do the other way (Wei et al. 2015): whenever a leaky bucket has room, one more row leaves, to the worker and
of the numbers for which that is worth most; and what a worker may not do without any longer leaves when it asks, budget
or not. A worker that has read everything once gets only what others have changed since.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Literal, NamedTuple

import torch

from covey.central.cached.cache import ParameterCopy, ReadParameters
from covey.central.cached.petuum import TableServer
from covey.central.cached.rows import MOST, Renewed, RowChanges, RowsChanged, Tick, rows_of
from covey.message import Address
from covey.model.replica import Replica
from covey.program import Node
from covey.vector import Vector

Policy = Literal["magnitude", "random", "fifo"]


class Waiting(NamedTuple):
    """A row that a worker lacks something of."""

    since: int  # the clock of the slowest worker when it was first changed: only later steps are missing
    key: float  # the smallest goes first


class RowReader:
    """A worker that has a copy of everything, and what of it is out of date."""

    def __init__(self) -> None:
        self.waiting: dict[int, Waiting] = {}
        self._clocks: Counter[int] = Counter()

    def lack(self, row: int, found: Waiting) -> None:
        if row not in self.waiting:
            self._clocks[found.since] += 1
        self.waiting[row] = found

    def have(self, row: int) -> None:
        since = self.waiting.pop(row).since
        self._clocks[since] -= 1
        if not self._clocks[since]:
            del self._clocks[since]

    def clock(self, slowest: int) -> int:
        """Of how many steps of everybody it lacks nothing."""
        return min(self._clocks, default=slowest)


class ManagedTable(TableServer):
    """One server: a worker's clock is what it says it is."""

    def __init__(self, node: Node, replica: Replica, *, count: int, length: int, rate: float, policy: Policy) -> None:
        super().__init__(node, replica, count=count, eager=False)
        self.hears = {ReadParameters: self.park, RowChanges: self.add_rows, Tick: self.tick}
        self.rate, self.policy = rate, policy
        self.rows = rows_of(replica, count, length)
        self.heard = node.remember("heard", [0] * node.workers).value  # messages of rows from each worker
        self.known: dict[int, RowReader] = {}  # not remembered: after a restart all read everything anew
        self.line: list[tuple[float, int, int, int]] = []  # a heap: key, serial, worker, row; some are out of date
        self.serial = 0
        self.empty_at = 0.0  # when the bucket will have run empty
        self.idle = False

    async def serve(self) -> None:
        await self.node.spawn(self.run())
        await super().serve()

    async def left(self, who: Address) -> None:
        self.known.pop(who.rank, None)
        await super().left(who)

    async def tick(self, tick: Tick) -> None:
        self.clocks.done[tick.sender.rank] = tick.clock
        if tick.samples:
            await self.count(tick)

    def of(self, rows: Sequence[int]) -> Vector:
        found, flat = (self.rows[row] for row in rows), self.replica.flat
        return Vector(flat.parts[row.part][row.start : row.stop] for row in found)

    # -- rows that come, and who lacks them then ----------------------------------------------------------------------

    async def add_rows(self, message: RowChanges) -> None:
        rank = message.sender.rank
        self.heard[rank] += 1
        numbers = self.of(message.rows).add_(message.changes)
        self.replica.moved(counted=False)
        others = [reader for reader in self.known if reader != rank]
        worth = self.worth(message.changes, numbers) if others else []
        for reader in others:
            for row, more in zip(message.rows, worth, strict=True):
                self.miss(reader, row, more)
        if self.idle and self.line:
            self.idle = False
            await self.node.send(self.node.address, RowsChanged())

    def worth(self, changes: Vector, numbers: Vector) -> list[float]:
        """|change| / |w| of every row; what was zero has changed without end."""
        if self.policy != "magnitude" or any(part.is_meta for part in changes.parts):
            return [0.0] * len(changes.parts)
        sizes = [torch.stack([torch.linalg.vector_norm(part) for part in v.parts]) for v in (changes, numbers)]
        found: list[float] = (sizes[0] / sizes[1]).nan_to_num(0.0).tolist()
        return found

    def miss(self, rank: int, row: int, worth: float) -> None:
        """A worker lacks a change of a row; what was worth sending before is worth more now."""
        reader, self.serial = self.known[rank], self.serial + 1
        before = reader.waiting.get(row)
        if self.policy == "magnitude":
            key = (before.key if before else 0.0) - worth
        elif before:
            return
        else:
            key = self.node.rng.random() if self.policy == "random" else float(self.serial)
        reader.lack(row, Waiting(before.since if before else self.clocks.slowest, key))
        heappush(self.line, (key, self.serial, rank, row))

    # -- rows that leave ----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Whenever the bucket is empty, give one more row back."""
        while True:
            if (best := self.best()) is None:
                self.idle = True
                await self.node.receive(RowsChanged, sender=self.node.address)
            elif (wait := self.empty_at - await self.node.now()) > 0:
                await self.node.sleep(wait)
            elif best == self.best():
                await self.renew(best[0], [best[1]])

    def best(self) -> tuple[int, int] | None:
        """The worker and the row for which sending is worth most."""
        while self.line:
            key, _, rank, row = self.line[0]
            if rank in self.known and (found := self.known[rank].waiting.get(row)) and found.key == key:
                return rank, row
            heappop(self.line)
        return None

    async def renew(self, rank: int, rows: Sequence[int]) -> None:
        """Send a worker rows as they are now, and charge the bucket for them."""
        reader = self.known[rank]
        for row in rows:
            reader.have(row)
        values, clock = self.of(rows), reader.clock(self.clocks.slowest)
        await self.node.send(Address("worker", rank), Renewed(clock, self.heard[rank], list(rows), values))
        self.empty_at = max(self.empty_at, await self.node.now()) + values.nbytes / self.rate

    async def settle(self) -> None:
        """Let those read who may: at first everything, later what they may not do without any longer."""
        for rank in sorted(self.parked):
            if (need := self.parked[rank].clock) <= self.clocks.slowest:
                del self.parked[rank]
                await (self.force(rank, need) if rank in self.known else self.answer(rank))

    async def force(self, rank: int, need: int) -> None:
        due = [row for row, found in self.known[rank].waiting.items() if found.since < need]
        if due:
            await self.node.note("forced back", len(due))
        for first in range(0, max(1, len(due)), MOST):
            await self.renew(rank, due[first : first + MOST])

    async def answer(self, rank: int) -> None:
        self.known[rank] = RowReader()
        copy = ParameterCopy(self.clocks.slowest, self.heard[rank], self.params)
        await self.node.send(Address("worker", rank), copy)
