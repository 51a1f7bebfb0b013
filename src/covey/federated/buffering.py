"""Without rounds (FedBuff, Nguyen et al. 2022): clients train at any time, and every few reports make an update."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from math import isfinite, sqrt
from typing import Any

from covey.federated.aggregation import WeightedMean
from covey.federated.aggregator import MeanLoss, ShareSizes, fault_in
from covey.federated.coordinator import FederatedService, HeldModel, not_begun, show
from covey.federated.messages import CheckIn, ClientReport, ComeBack, Configuration, address
from covey.federated.pace_steering import until
from covey.membership import Departed
from covey.model.replica import Replica
from covey.observe.membership import RoundRecord, RoundState
from covey.program import Node, Receive
from covey.vector import Vector


class ReportBuffer:
    """The reports of the update to come: each counts 1 / sqrt(1 + staleness), and their sum is divided by their number.

    That keeps an update of stale reports small, as in the paper; a mean by weights would not.
    """

    def __init__(self) -> None:
        self.clients: list[int] = []
        self.samples, self.loss = 0, MeanLoss()
        self._updates, self._buffers = WeightedMean(), WeightedMean()
        self._counts = 0.0

    def add(self, report: ClientReport, staleness: int) -> None:
        count = 1 / sqrt(1 + staleness)
        self.clients.append(report.sender.rank)
        self._updates.add(report.update, count)
        self._buffers.add(report.buffers, report.samples)
        self._counts += count
        self.samples += report.samples
        self.loss.add(report)

    def update(self) -> Vector:
        return self._updates.result().mul_(self._counts / len(self.clients))

    def buffers(self) -> Vector:
        return self._buffers.result()


class Buffering:
    """Keeps `concurrency` clients at work on whatever model is newest when they begin."""

    def __init__(self, node: Node, replica: Replica, service: FederatedService, size: int, sizes: ShareSizes) -> None:
        self.node, self.service, self.size, self.sizes = node, service, size, sizes
        self.concurrency, self.patience = service.terms.target, service.terms.reporting
        self.model = HeldModel(node, replica, service.step)
        self.version = node.remember("version", 0)  # the updates of the model
        self.running: OrderedDict[int, tuple[int, float]] = OrderedDict()  # version and deadline, by client
        self.collected = ReportBuffer()
        self.late: dict[int, int] = {}  # the version with which a client began whose time is over
        self.dropped = self.extra = 0
        self.heard = 0.0  # when the last report came that counts

    async def run(self) -> None:
        for number in self.node.steps():
            if number < self.service.log.begun:  # an earlier incarnation has ended this update
                continue
            began, replica = await self.node.now(), self.model.replica
            params, buffers = replica.flat.clone(), replica.buffers.clone()  # lent to all who begin with this version
            given = Configuration(self.version.value, number / self.service.rounds, params, buffers)
            if not await self.filled(number, began, given):
                return
            await self.commit(number, began)

    async def filled(self, number: int, began: float, given: Configuration) -> bool:
        """Wait until an update is full; False: for a long time too few have come."""
        tries = 0
        while not await self.collect(given):
            why = f"{len(self.collected.clients)} reports came, and it needs {self.size}"
            await self.tell("not begun", number, began, await self.node.now(), why)
            tries += 1
            if self.service.tries is not None and tries >= self.service.tries:
                return False
        return True

    async def collect(self, given: Configuration) -> bool:
        """Hear clients until an update is full; False: for a long time nobody has come, or nobody was in time."""
        self.heard = await self.node.now()
        while len(self.collected.clients) < self.size:
            left = self.heard + self.patience + self.service.terms.selection - await self.node.now()
            if left <= 0:
                return False
            message = await Receive((CheckIn, ClientReport, Departed), timeout=min(left, await self.shortest()))
            if isinstance(message, CheckIn):
                await self.admit(message.sender.rank, given)
            elif isinstance(message, ClientReport):
                await self.take(message)
            elif isinstance(message, Departed):
                self.dropped += self.running.pop(message.sender.rank, None) is not None
                self.late.pop(message.sender.rank, None)
            elif not self.running:
                return False
        return True

    async def admit(self, client: int, given: Configuration) -> None:
        """Let a client begin, if there is room for it."""
        now = await self.node.now()
        self.service.steering.came(now, client)
        self.late.pop(client, None)
        if len(self.running) >= self.concurrency:
            await self.node.send(address(client), self.come_back(now))
            return
        self.running[client] = given.number, now + self.patience
        await self.node.send(address(client), given, loan=True)

    async def take(self, report: ClientReport) -> None:
        """Add a report that is awaited; drop any other."""
        begun = self.running.pop(report.sender.rank, None)
        if begun is None or begun[0] != report.number:
            self.extra += 1
            fault = "no report of its client is awaited" if begun is None else "it is of another model"
            if begun is None and self.late.pop(report.sender.rank, None) == report.number:
                fault = ""  # only too late
        elif fault := self.fault_in(report):
            self.dropped += 1
            await self.node.note("refused reports")
        else:
            self.heard = await self.node.now()
            self.collected.add(report, self.version.value - report.number)
            await self.node.note("staleness", self.version.value - report.number)
        await self.node.send(report.sender, self.come_back(await self.node.now(), fault))

    def fault_in(self, report: ClientReport) -> str:
        held = self.model.replica
        return fault_in(report, held.flat, held.buffers, self.sizes(report.sender.rank))

    async def commit(self, number: int, began: float) -> None:
        """Make an update of the reports, if their sum is not too large for its numbers, and write it down."""
        update, buffers = self.collected.update(), self.collected.buffers()
        now = await self.node.now()
        self.service.steering.round_ended(now - began)
        finite = update.finite() and buffers.finite()
        # from here until it is in the log nothing is awaited: both happen, or neither
        why = self.model.commit(number, update, buffers) if finite else "the mean of its reports is not finite"
        self.version.value += not why
        await self.tell("abandoned" if why else "committed", number, began, now, why)
        self.collected = ReportBuffer()

    async def tell(self, state: RoundState, number: int, began: float, now: float, why: str) -> None:
        """Write down what came of an update."""
        done, reports = self.collected, len(self.collected.clients)
        committed, loss = state == "committed", done.loss.result()
        record = RoundRecord(
            number=number, state=state, seconds=now, took=now - began, chosen=reports + self.dropped, reports=reports,
            dropped=self.dropped, extra=self.extra, samples=done.samples, loss=loss if isfinite(loss) else None,
            there=self.service.steering.there, why=why,
        )  # fmt: skip
        if state == "not begun":  # its reports count in a later one
            record = not_begun(number, began, now, self.service.steering, why)
        else:
            self.dropped = self.extra = 0
        self.service.log.add(record, done.clients if committed else ())
        show(self.node, record)
        if committed:
            if isfinite(loss):
                await self.node.note("loss", loss)
            await self.node.note("update")
            await self.node.note("samples", done.samples * self.service.passes)
            await self.node.sleep(0)  # a score of this model may end the run before the next update begins

    async def shortest(self) -> float:
        """Give up those whose time is over; the seconds until the next one's is, or until nobody is waited for."""
        now = await self.node.now()
        while self.running and next(iter(self.running.values()))[1] <= now:
            client, (version, _) = self.running.popitem(last=False)
            self.late[client] = version
            self.dropped += 1
        return next(iter(self.running.values()))[1] - now if self.running else self.service.terms.selection

    def come_back(self, now: float, refused: str = "") -> ComeBack:
        return ComeBack(*until(self.service.steering.period(now), now), refused=refused)


def buffering(service: FederatedService, size: int, sizes: ShareSizes) -> Callable[[Node, Replica], Any]:
    """The program of the coordinator."""
    return lambda node, replica: Buffering(node, replica, service, size, sizes).run()
