"""Bösen's managed communication: a worker's changes leave row by row, the most changed first, at a limited rate.

As petuum, workers step their own copies and servers add changes up. But changes gather in rows, and a row leaves when
a leaky bucket has room, or when the bound requires it, budget or not (Wei et al. 2015); both ways, for servers do the
same (central/cached/row_server.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product

import torch

from covey.central.cached.cache import Cache, ParameterCopy, ReadParameters
from covey.central.cached.petuum import cached
from covey.central.cached.row_server import ManagedTable, Policy
from covey.central.cached.rows import (
    MOST,
    ParameterRow,
    Renewed,
    RowChanges,
    RowsChanged,
    Tick,
    norms,
    rows_of,
    runs_of,
)
from covey.errors import PlanError
from covey.model.replica import Replica
from covey.model.scored import NOTHING
from covey.program import Node
from covey.servers.goodbye import Goodbye
from covey.servers.roles import workers_and_servers
from covey.servers.server_program import serve
from covey.simulate.units import parse_rate
from covey.strategy import Role, Strategy
from covey.vector import Vector


class Manager:
    """A worker's changes that no server has yet, and the program that sends them."""

    def __init__(self, node: Node, replica: Replica, cache: Cache, rate: float, length: int, policy: Policy) -> None:
        self.node, self.replica, self.cache, self.rate, self.policy = node, replica, cache, rate, policy
        self.length = length
        self.rows = rows_of(replica, len(cache.servers), length)
        self.runs = runs_of(replica, len(cache.servers))
        self.order: list[int] = []  # of rows that wait
        self.pending = node.remember("pending", replica.flat.map(torch.zeros_like)).value
        self.since: dict[int, int] = node.remember("since", {}).value  # row -> the first step of which it has something
        self.count = node.remember("count", [0] * len(cache.servers)).value  # messages of rows to each server
        # messages that servers may not have heard: number, row, change
        self.sent: list[deque[tuple[int, int, torch.Tensor]]] = [deque() for _ in cache.servers]
        self.told = node.remember("told", [0]).value  # the last clock that servers heard
        self.steps = node.remember("steps", [0]).value  # that were done
        self.empty_at = 0.0  # when the bucket will have run empty

    def of(self, row: ParameterRow, vector: Vector) -> torch.Tensor:
        return vector.parts[row.part][row.start : row.stop]

    async def run(self) -> None:
        """Whenever the bucket is empty, send one more row."""
        while True:
            if not self.since:
                await self.node.receive(RowsChanged, sender=self.node.address)
            elif (wait := self.empty_at - await self.node.now()) > 0:
                await self.node.sleep(wait)
            elif self.since:
                await self.send([self.choose()])
                await self.tell()

    def choose(self) -> int:
        """The row that is worth most; what is worth most is looked at once a step."""
        while True:
            self.order = self.order or self.ranked()
            if (row := self.order.pop()) in self.since:
                return row

    def ranked(self) -> list[int]:
        """The rows that wait, the best last: by default those that have changed most for what they are."""
        waiting = sorted(self.since, reverse=True)
        if self.policy == "fifo":
            return sorted(waiting, key=lambda row: -self.since[row])
        if self.policy == "random":
            self.node.rng.shuffle(waiting)
            return waiting
        changed = self.changed()
        return sorted(waiting, key=lambda row: changed[row])

    def changed(self) -> list[float]:
        """|change| / |w| of every row; what was zero has changed without end."""
        found: list[float] = []
        for part, first, last in self.runs:
            change, numbers = (norms(v.parts[part][first:last], self.length) for v in (self.pending, self.replica.flat))
            found += [0.0] * len(change) if change.is_meta else (change / numbers).nan_to_num(0.0).tolist()
        return found

    async def send(self, rows: Sequence[int]) -> None:
        """Send rows now, and charge the bucket for them."""
        for index, first in product(range(len(self.count)), range(0, len(rows), MOST)):
            mine = [row for row in rows[first : first + MOST] if self.rows[row].server == index]
            if not mine:
                continue
            changes = Vector(self.of(self.rows[row], self.pending).clone() for row in mine)
            for row, change in zip(mine, changes.parts, strict=True):
                self.of(self.rows[row], self.pending).zero_()
                del self.since[row]
                self.sent[index].append((self.count[index], row, change))
            self.count[index] += 1
            await self.node.send(self.cache.servers[index], RowChanges(mine, changes), loan=True)
            self.empty_at = max(self.empty_at, await self.node.now()) + changes.nbytes / self.rate

    @property
    def clock(self) -> int:
        """How many steps have been sent as a whole."""
        return min(self.since.values(), default=self.steps[0])

    async def tell(self, samples: int = 0) -> None:
        """Say how far all that was changed has been sent."""
        if self.clock > self.told[0] or samples:
            self.told[0] = self.clock
            for index, address in enumerate(self.cache.servers):
                buffers = self.replica.buffers if samples and index == 0 else NOTHING
                await self.node.send(address, Tick(self.told[0], samples, buffers))

    async def add(self, change: Vector, bound: int) -> None:
        """Gather the change of a step; what others may not do without any longer leaves whatever the budget says."""
        step = self.node.step
        self.pending.add_(change)
        self.steps[0] = step + 1
        for row in range(len(self.rows)):
            self.since.setdefault(row, step)
        self.order = []
        due = [row for row, first in self.since.items() if first <= step - bound]
        if due:
            await self.node.note("forced", len(due))
            await self.send(due)
        await self.tell(self.replica.batch.samples)
        await self.node.send(self.node.address, RowsChanged())


class ManagedCache(Cache):
    """A worker's copy whose own changes are rows, and into which servers' rows come unasked."""

    manager: Manager

    def __init__(self, node: Node, replica: Replica, count: int, bound: int) -> None:
        super().__init__(node, replica, count, bound, eager=False)
        while node.receive_nowait(Renewed):
            pass  # of before a restart, after which all is read anew

    async def refresh(self) -> None:
        """Take what has come; ask only where the copy is still too old."""
        need = max(0, self.node.step - self.bound)
        for index, address in enumerate(self.servers):
            while came := self.node.receive_nowait(Renewed, sender=address):
                self.renew(index, came)
            if self.clocks[index] < need:
                await self.node.send(address, ReadParameters(need))
            while self.clocks[index] < need:
                answer = await self.node.receive_any(ParameterCopy, Renewed, sender=address)
                if isinstance(answer, ParameterCopy):
                    self.take(index, answer)
                elif isinstance(answer, Renewed):
                    self.renew(index, answer)
        await self.node.note("staleness", self.node.step - min(self.clocks))

    def take(self, index: int, copy: ParameterCopy) -> None:
        """Replace the copy, and keep one's own changes that are not in it; `mine` counts messages of rows."""
        manager, flat = self.manager, self.replica.flat
        self.place(index).copy_(copy.params).add_(manager.pending.cut(self.pieces[index]))
        for row, change in self.unheard(index, copy.mine):
            manager.of(manager.rows[row], flat).add_(change)
        self.clocks[index] = copy.clock

    def renew(self, index: int, came: Renewed) -> None:
        """The same for some rows."""
        assert came.clock >= self.clocks[index], "a copy never goes back in time"
        manager, flat, rows = self.manager, self.replica.flat, set(came.rows)
        here, mine = (Vector(manager.of(manager.rows[row], v) for row in came.rows) for v in (flat, manager.pending))
        here.copy_(came.values).add_(mine)
        for row, change in self.unheard(index, came.mine):
            if row in rows:
                manager.of(manager.rows[row], flat).add_(change)
        self.clocks[index] = came.clock

    def unheard(self, index: int, heard: int) -> list[tuple[int, torch.Tensor]]:
        """One's own changes that a server had not heard when it had heard this many messages."""
        sent = self.manager.sent[index]
        while sent and sent[0][0] < heard:
            sent.popleft()
        return [(row, change) for _, row, change in sent]


async def worker(node: Node, replica: Replica, *, count: int, share: float, settings: Bosen) -> None:
    """Read when the copy is too old, step on it, let the manager send what has changed."""
    cache = ManagedCache(node, replica, count, settings.bound)
    manager = Manager(node, replica, cache, parse_rate(settings.rate), settings.row, settings.policy)
    cache.manager = manager
    await node.spawn(manager.run())
    while node.training():
        await cache.refresh()
        grad = await replica.gradient(node)
        before = replica.flat.clone()
        replica.apply(grad, share)
        await manager.add(replica.flat - before, settings.bound)
    await manager.send(sorted(manager.since))
    await manager.tell()
    await cache.leave()
    for address in cache.servers:
        await node.receive(Goodbye, sender=address)


@dataclass(frozen=True, kw_only=True, slots=True)
class Bosen:
    """Petuum at a limited rate: the rows that changed most are sent first, and all of them before the bound."""

    bound: int = 3
    rate: str = "40mbit"  # of each worker, and of each server
    policy: Policy = "magnitude"  # which row goes next: the relatively most changed, any, the longest waiting
    row: int = 1024  # numbers
    weight: float | None = None  # what a change counts; 1 / workers

    def strategy(self, workers: int) -> Strategy:
        if self.row < 1:
            raise PlanError(f"bosen(row={self.row}): a row needs at least 1 number")
        rate = float(parse_rate(self.rate))
        petuum = cached("bosen", self.bound, self.weight, eager=False, workers=workers)
        share = petuum.settings["weight"]

        def roles(workers: int, servers: int) -> list[Role]:
            work = partial(worker, count=servers, share=share, settings=self)
            tend = partial(serve, ManagedTable, length=self.row, rate=rate, policy=self.policy)
            return workers_and_servers(workers, work, servers, tend)

        return replace(petuum, roles=roles, settings={**asdict(self), "weight": share})
