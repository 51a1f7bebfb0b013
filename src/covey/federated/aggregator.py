"""The aggregator: gives the model to chosen clients, and aggregates what they report. It keeps no report of anybody."""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import assert_never

import msgspec
from torch import Size, dtype

from covey.errors import WireError
from covey.federated.aggregation import Aggregation, MakeAggregation, WeightedMean
from covey.federated.messages import (
    COORDINATOR,
    ClientReport,
    ComeBack,
    Configuration,
    RoundBegin,
    RoundEnd,
    address,
)
from covey.federated.pace_steering import Period, until
from covey.federated.rounds import Reporting, RoundTerms
from covey.membership import Departed
from covey.message import Message
from covey.program import Node, Receive
from covey.servers.goodbye import Goodbye
from covey.vector import Vector

NOTHING = Vector(())
DROPPED = {"extra": "", "twice": "its client has reported already", "uninvited": "its client was not chosen"}

ShareSizes = Callable[[int], int]
"""How many samples a client has, at most: a report of more would have more weight than its client can have."""


Decode = Callable[[int, int, Vector], Vector]
"""The update that a client's report of a round stands for; WireError for what it cannot have sent."""


class MeanLoss:
    """The mean of the clients' losses, by samples; a loss that is no number says nothing about the others."""

    def __init__(self) -> None:
        self._sum, self._samples = 0.0, 0

    def add(self, report: ClientReport) -> None:
        if isfinite(report.loss):
            self._sum += report.samples * report.loss
            self._samples += report.samples

    def result(self) -> float:
        return self._sum / self._samples if self._samples else float("nan")


class ReportSums:
    """What the reports of one round come to."""

    def __init__(self, updates: Aggregation, losses: bool = True) -> None:
        self.updates, self.buffers, self.loss, self._losses = updates, WeightedMean(), MeanLoss(), losses
        self.clients: list[int] = []
        self.samples = self.extra = self.refused = 0

    def add(self, report: ClientReport) -> None:
        self.clients.append(report.sender.rank)
        self.updates.add(report.update, report.samples)
        self.buffers.add(report.buffers, report.samples)
        if self._losses:
            self.loss.add(report)
        self.samples += report.samples


def fault_in(report: ClientReport, params: Vector, buffers: Vector, most: int) -> str:
    """Why a report cannot be added to others: only one of this model, of 1 to `most` samples, and of numbers can."""
    if _shapes(report.update) != _shapes(params) or _shapes(report.buffers) != _shapes(buffers):
        return "its tensors are not those of the model"
    if report.samples <= 0:
        return "it has no samples"
    if report.samples > most:
        return f"it counts {report.samples} samples, and its client has at most {most}"
    if not (report.update.finite() and report.buffers.finite()):
        return "it contains NaN or infinite numbers"
    return ""


def _shapes(vector: Vector) -> list[tuple[Size, dtype]]:
    return [(part.shape, part.dtype) for part in vector.parts]


class Aggregator:
    """Drives the reporting phase of one round after another."""

    strays: tuple[type[Message], ...] = ()  # what may come besides, of rounds that are over

    def __init__(
        self, node: Node, terms: RoundTerms, make: MakeAggregation, sizes: ShareSizes, losses: bool = True,
        decode: Decode | None = None,
    ) -> None:  # fmt: skip
        self.node, self.terms, self.make, self.sizes = node, terms, make, sizes
        self.decode = decode
        self.losses = losses  # whether the mean of the clients' losses is told: noise does not cover it
        self.again: Period = 0.0, 0.0

    async def run(self) -> None:
        while True:
            message = await self.node.receive_any(RoundBegin, ClientReport, Departed, Goodbye, *self.strays)
            if isinstance(message, Goodbye):
                return
            if isinstance(message, RoundBegin):
                await self.round(message)
            elif isinstance(message, ClientReport):  # of a round that is over
                await self.node.note("late reports")
                await self.dismiss(message)

    async def round(self, begin: RoundBegin) -> None:
        """Configure the chosen clients, and collect their reports until the round is decided."""
        self.again = begin.earliest, begin.latest
        for client in begin.clients:
            given = Configuration(begin.number, begin.share, begin.params, begin.buffers)
            await self.node.send(address(client), given, loan=True)
        reporting = Reporting(self.terms, begin.clients, await self.node.now())
        sums = ReportSums(self.make(begin.number), self.losses)
        while (state := reporting.state(now := await self.node.now())) == "open":
            message = await Receive((ClientReport, Departed), timeout=reporting.deadline - now)
            if isinstance(message, Departed) and message.sender == COORDINATOR:
                return  # whoever takes its place begins the round anew, with other clients
            if isinstance(message, Departed):
                reporting.lost(message.sender.rank)
            elif isinstance(message, ClientReport):
                await self.dismiss(message, self.take(message, begin, reporting, sums))
        await self.node.send(COORDINATOR, ended(begin.number, state == "committed", reporting, sums), loan=True)

    async def dismiss(self, report: ClientReport, refused: str = "") -> None:
        """Tell a client that has reported when to come again, and what is wrong with its report."""
        await self.node.send(report.sender, ComeBack(*until(self.again, await self.node.now()), refused=refused))

    def decoded(self, report: ClientReport) -> ClientReport:
        """The report with the update that it stands for; with none where it cannot be read."""
        if self.decode is None:
            return report
        try:
            update = self.decode(report.sender.rank, report.number, report.update)
        except WireError:
            update = NOTHING
        return msgspec.structs.replace(report, update=update)

    def take(self, report: ClientReport, begin: RoundBegin, reporting: Reporting, sums: ReportSums) -> str:
        """Add a report, or drop it; what is wrong with it. One that is only too late is dropped without a reason."""
        client = report.sender.rank
        if report.number != begin.number:
            sums.extra += 1
            if report.number < begin.number and client not in reporting.awaited:
                return ""  # of a round that is over: only too late
            return f"it is of round {report.number}, and this is round {begin.number}"
        report = self.decoded(report)
        if fault := fault_in(report, begin.params, begin.buffers, self.sizes(client)):
            reporting.lost(client)
            sums.refused += 1
            return fault
        match verdict := reporting.report(client):
            case "counted":
                sums.add(report)
                return ""
            case "extra" | "twice" | "uninvited":
                sums.extra += 1
                return DROPPED[verdict]
            case _:
                assert_never(verdict)


def ended(number: int, committed: bool, reporting: Reporting, sums: ReportSums) -> RoundEnd:
    """What the coordinator is told; a sum that is too large for its numbers is not committed."""
    update = sums.updates.result() if committed else NOTHING
    buffers = sums.buffers.result() if committed else NOTHING
    why = "" if committed else f"{len(reporting.counted)} reports came, and it needs {reporting.terms.enough}"
    if committed and not (update.finite() and buffers.finite()):
        committed, why = False, "the mean of its reports is not finite"
    return RoundEnd(
        number=number, committed=committed, clients=sums.clients, dropped=reporting.dropped, extra=sums.extra,
        refused=sums.refused, samples=sums.samples, loss=sums.loss.result(),
        update=update if committed else NOTHING, buffers=buffers if committed else NOTHING, why=why,
    )  # fmt: skip
