"""The aggregator of secure rounds: it passes on keys, shares and lists, and opens the sum of the reports."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

from covey.errors import SumAbandoned, WireError
from covey.federated.aggregator import NOTHING, Aggregator, ShareSizes
from covey.federated.messages import COORDINATOR, ComeBack, Configuration, RoundBegin, RoundEnd, SumWithdrawal, address
from covey.federated.pace_steering import until
from covey.federated.private.private_settings import ClientPrivacy, SecAgg
from covey.federated.private.report_numbers import (
    ReportNumbers,
    ReportTerms,
    SummedReport,
    length,
    origin,
)  # fmt: skip
from covey.federated.rounds import RoundTerms
from covey.membership import Departed
from covey.message import Message
from covey.privacy.randomness import RandomnessSource
from covey.privacy.secagg import FixedPoint, SumOutcome, SumServer, sum_terms
from covey.privacy.secagg.fixed_point import largest_sum
from covey.privacy.secagg.messages import (
    AdvertiseKeys,
    Endorsement,
    MaskedInput,
    ShareKeys,
    SumTerms,
    UnmaskShares,
)  # fmt: skip
from covey.privacy.secagg.terms import fewest
from covey.program import Node, Receive

ANSWERS: tuple[type[Message], ...] = (AdvertiseKeys, ShareKeys, MaskedInput, Endorsement, UnmaskShares, SumWithdrawal)
ALONE = "a single client was chosen, and its sum would be its report"
MASKED = 2  # the phase in which reports come


@dataclass(frozen=True, slots=True)
class SumService:
    """How the service takes secure sums.

    Args:
        settings: Threshold, neighbours and the size of numbers.
        directory: The public identities of all clients.
        randomness: Names of rounds and noise come from it.
        privacy: Noise for the sums; None: they are opened as they are.
        context: What of the run all clients have been told.
    """

    settings: SecAgg
    directory: Mapping[int, bytes]
    randomness: RandomnessSource
    privacy: ClientPrivacy | None = None
    context: bytes = b""


class CoordinatorLost(Exception):
    """Nobody waits for the sum any more."""


class SecureRound:
    """One round: who of its clients is still there, and the sum that they take."""

    def __init__(self, begin: RoundBegin, service: SumService, cap: float, enough: int) -> None:
        self.begin, privacy = begin, service.privacy
        most = privacy.covered.clip if privacy else service.settings.clip
        levels = min(largest_sum(service.settings.bits) // len(begin.clients), 1 << 50)
        fixed = FixedPoint(most, levels, service.settings.bits)
        clip = privacy.covered.clip if privacy else 0.0
        self.report_terms = ReportTerms(most, cap, clip, privacy is None)
        self.numbers = ReportNumbers(self.report_terms, levels, service.settings.bits)
        self.given = Configuration(begin.number, begin.share, begin.params, begin.buffers)
        self.terms = sum_terms(
            begin.clients, length(begin.params, begin.buffers), fixed, threshold=service.settings.share,
            neighbours=service.settings.near, least=min(max(2, enough), len(begin.clients)),
            randomness=service.randomness.of("round", begin.number),
            about=origin(self.given, self.report_terms, service.context),
        )  # fmt: skip
        self.server = SumServer(self.terms, service.directory)
        self.gone: set[int] = set()  # they left, withdrew or were refused: nobody waits for them
        self.declined: set[int] = set()  # they take no part with these terms
        self.refused = self.extra = 0

    @property
    def hopeless(self) -> bool:
        """Whether so many declined the terms that the others cannot open a sum."""
        return len(self.begin.clients) - len(self.declined) < fewest(self.terms)

    @property
    def awaited(self) -> set[int]:
        return self.server.waiting - self.gone

    def take(self, message: Message) -> str | None:
        """Take what a client sent; where nobody waits for the client any more it is told to go, and what is wrong."""
        client = message.sender.rank
        if isinstance(message, Departed):
            self.gone.add(client)
            return None
        own = message.number == self.begin.number if isinstance(message, SumWithdrawal) else _of(self.terms, message)
        if client not in self.awaited or not own:  # it comes too late, or belongs to another round
            self.extra += 1
            return None
        if isinstance(message, SumWithdrawal):
            self.gone.add(client)
            if message.why:
                self.declined.add(client)
            return ""
        try:
            self.server.receive(client, message)
        except WireError as error:
            self.refused += 1
            self.gone.add(client)
            return str(error)
        return None

    def ended(self, outcome: SumOutcome | None, found: SummedReport | None, why: str) -> RoundEnd:
        """What the coordinator is told; `why` no sum was opened."""
        committed = outcome is not None and found is not None and found.finite()
        clients = list(outcome.clients) if outcome and committed else []
        if self.declined and why:
            why = f"{len(self.declined)} of {len(self.begin.clients)} chosen clients declined its terms; {why}"
        return RoundEnd(
            number=self.begin.number, committed=committed, clients=clients, dropped=len(self.gone - set(clients)),
            extra=self.extra, refused=self.refused, samples=found.samples if found and committed else 0,
            loss=found.loss if found and committed else math.nan,
            update=found.update if found and committed else NOTHING,
            buffers=found.buffers if found and committed else NOTHING,
            why="" if committed else why or "the mean of its reports is not finite",
            declined=len(self.declined), hopeless=self.hopeless,
        )  # fmt: skip


class SecureAggregator(Aggregator):
    """Drives the phases of one secure sum after another."""

    strays = ANSWERS

    def __init__(self, node: Node, terms: RoundTerms, sums: SumService, sizes: ShareSizes) -> None:
        super().__init__(node, terms, _never, sizes)
        self.sums = sums

    async def round(self, begin: RoundBegin) -> None:
        """Take the sum of the chosen clients' reports; where it cannot be opened the round is abandoned."""
        self.again = begin.earliest, begin.latest
        privacy = self.sums.privacy
        cap = privacy.cap if privacy else max(self.sizes(client) for client in begin.clients)
        if len(begin.clients) < 2:  # its sum would be the report of one
            await self.abandon(begin)
            return
        current = SecureRound(begin, self.sums, float(cap), self.terms.enough)
        for client in begin.clients:
            for message in (current.given, current.report_terms, current.terms):
                await self.node.send(address(client), message, loan=True)
        if end := await self.ended(current):
            await self.node.send(COORDINATOR, end, loan=True)
        for client in sorted(set(begin.clients) - current.gone):
            await self.let_go(client)

    async def ended(self, current: SecureRound) -> RoundEnd | None:
        """What the coordinator is told; None: it is lost, and its successor begins anew, with other clients."""
        try:
            outcome = await self.phases(current)
        except CoordinatorLost:
            return None
        except SumAbandoned as error:
            await self.node.note("sums not opened")
            return current.ended(None, None, str(error))
        return current.ended(outcome, self.opened(current, outcome), "")

    async def abandon(self, begin: RoundBegin) -> None:
        end = RoundEnd(begin.number, False, [], 0, 0, 0, 0, math.nan, NOTHING, NOTHING, ALONE)
        await self.node.send(COORDINATOR, end)
        for client in begin.clients:
            await self.let_go(client)

    async def phases(self, current: SecureRound) -> SumOutcome:
        """Five answers of the clients, one after another; SumAbandoned where too few are left."""
        for phase in range(5):
            limit = self.terms.reporting if phase == MASKED else self.terms.selection
            enough = max(self.terms.target, fewest(current.terms)) if phase == MASKED else None
            await self.hear(current, await self.node.now() + limit, enough)
            for client, message in current.server.advance().items():
                if client not in current.gone:
                    await self.node.send(address(client), message, loan=True)
        assert current.server.outcome, "all phases are over"
        return current.server.outcome

    async def hear(self, current: SecureRound, deadline: float, enough: int | None) -> None:
        """Take what clients answer, until all have who are there, or enough have, or time is over."""
        asked = len(current.server.waiting)
        while current.awaited and (enough is None or asked - len(current.server.waiting) < enough):
            now = await self.node.now()
            if now >= deadline:
                return
            message = await Receive((Departed, *ANSWERS), timeout=deadline - now)
            if isinstance(message, Departed) and message.sender == COORDINATOR:
                raise CoordinatorLost
            if message is not None and (refused := current.take(message)) is not None:
                await self.let_go(message.sender.rank, refused)

    def opened(self, current: SecureRound, outcome: SumOutcome) -> SummedReport | None:
        begin, privacy = current.begin, self.sums.privacy
        if privacy is None:
            return current.numbers.mean(outcome.total, begin.params, begin.buffers)
        chance = self.sums.randomness.of("noise", begin.number)
        samples = sum(self.sizes(client) for client in outcome.clients)
        return current.numbers.noisy(outcome.total, begin.params, begin.buffers, privacy.covered, chance, samples)

    async def let_go(self, client: int, refused: str = "") -> None:
        """Tell a client when to come again, and what was wrong with its message."""
        await self.node.send(address(client), ComeBack(*until(self.again, await self.node.now()), refused=refused))


def _of(terms: SumTerms, message: Message) -> bool:
    """Whether a message belongs to this sum."""
    return getattr(message, "round", b"") == terms.round


def _never(number: int) -> NoReturn:
    raise AssertionError("a secure sum is the aggregate")
