"""Without rounds (FedBuff, Nguyen et al. 2022): clients train at any time, and every few reports make an update."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from math import isfinite, sqrt
from typing import Any

from covey.federated.aggregation import WeightedMean
from covey.federated.aggregator import acceptable
from covey.federated.coordinator import FederatedService, HeldModel
from covey.federated.messages import CheckIn, ClientReport, ComeBack, Configuration, address
from covey.membership import Departed
from covey.model.replica import Replica
from covey.observe.membership import RoundRecord
from covey.program import Node, Receive
from covey.vector import Vector


class ReportBuffer:
    """The reports of the update to come: each counts 1 / sqrt(1 + staleness), and their sum is divided by their number.

    That keeps an update of stale reports small, as in the paper; a mean by weights would not.
    """

    def __init__(self) -> None:
        self.clients: list[int] = []
        self.samples, self.losses = 0, 0.0
        self._updates, self._buffers = WeightedMean(), WeightedMean()
        self._counts = 0.0

    def add(self, report: ClientReport, staleness: int) -> None:
        count = 1 / sqrt(1 + staleness)
        self.clients.append(report.sender.rank)
        self._updates.add(report.update, count)
        self._buffers.add(report.buffers, report.samples)
        self._counts += count
        self.samples += report.samples
        self.losses += report.loss * report.samples

    def update(self) -> Vector:
        return self._updates.result().mul_(self._counts / len(self.clients))

    def buffers(self) -> Vector:
        return self._buffers.result()


class Buffering:
    """Keeps `concurrency` clients at work on whatever model is newest when they begin."""

    def __init__(self, node: Node, replica: Replica, service: FederatedService, size: int) -> None:
        self.node, self.service, self.size = node, service, size
        self.concurrency, self.patience = service.terms.target, service.terms.reporting
        self.model = HeldModel(replica, service.step)
        self.running: OrderedDict[int, tuple[int, float]] = OrderedDict()  # version and deadline, by client
        self.dropped = self.extra = 0

    async def run(self) -> None:
        for version in self.node.steps():
            began, replica = await self.node.now(), self.model.replica
            params, buffers = replica.flat.clone(), replica.buffers.clone()  # lent to all who begin with this version
            share, collected = version / self.service.rounds, ReportBuffer()
            while len(collected.clients) < self.size:
                message = await Receive((CheckIn, ClientReport, Departed), timeout=await self.shortest())
                if isinstance(message, CheckIn):
                    await self.admit(message.sender.rank, Configuration(version, share, params, buffers))
                elif isinstance(message, ClientReport):
                    await self.take(message, version, collected)
                elif isinstance(message, Departed):
                    self.dropped += self.running.pop(message.sender.rank, None) is not None
            await self.commit(version, began, collected)

    async def admit(self, client: int, given: Configuration) -> None:
        """Let a client begin, if there is room for it."""
        self.service.steering.came()
        if len(self.running) >= self.concurrency:
            await self.node.send(address(client), self.come_back())
            return
        self.running[client] = given.number, await self.node.now() + self.patience
        await self.node.send(address(client), given, loan=True)

    async def take(self, report: ClientReport, version: int, collected: ReportBuffer) -> None:
        """Add a report that is awaited; drop any other."""
        begun = self.running.pop(report.sender.rank, None)
        if begun is None or begun[0] != report.number:
            self.extra += 1
        elif not acceptable(report, self.model.replica.flat, self.model.replica.buffers):
            self.dropped += 1
            await self.node.note("refused reports")
        else:
            collected.add(report, version - report.number)
            await self.node.note("staleness", version - report.number)
        await self.node.send(report.sender, self.come_back())

    async def commit(self, version: int, began: float, collected: ReportBuffer) -> None:
        """Make an update of the reports, and write it down."""
        self.model.commit(collected.update(), collected.buffers(), collected.samples)
        now, loss = await self.node.now(), collected.losses / collected.samples
        self.service.steering.round_ended(now - began)
        record = RoundRecord(
            number=version, state="committed", seconds=now, took=now - began,
            chosen=len(collected.clients) + self.dropped, reports=len(collected.clients), dropped=self.dropped,
            extra=self.extra, samples=collected.samples, loss=loss if isfinite(loss) else None,
        )  # fmt: skip
        self.dropped = self.extra = 0
        self.service.log.add(record, collected.clients)
        if isfinite(loss):
            await self.node.note("loss", loss)
        await self.node.note("update")
        await self.node.note("samples", collected.samples)

    async def shortest(self) -> float | None:
        """Give up those whose time is over; the seconds until the next one's is."""
        now = await self.node.now()
        while self.running and next(iter(self.running.values()))[1] <= now:
            self.running.popitem(last=False)
            self.dropped += 1
        return next(iter(self.running.values()))[1] - now if self.running else None

    def come_back(self) -> ComeBack:
        return ComeBack(*self.service.steering.wait())


def buffering(service: FederatedService, size: int) -> Callable[[Node, Replica], Any]:
    """The program of the coordinator."""
    return lambda node, replica: Buffering(node, replica, service, size).run()
