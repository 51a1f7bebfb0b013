"""A client's part in a secure round: keys and shares first, then training, then its numbers under masks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from covey.errors import PlanError, WireError
from covey.federated.client import SecureReporting, SumNews
from covey.federated.local_training import ClientTraining, ClientWork, LocalResult
from covey.federated.messages import ComeBack, Configuration, SumWithdrawal
from covey.federated.private.report_numbers import ReportNumbers, ReportTerms, origin
from covey.membership import Departed
from covey.message import Message
from covey.privacy.randomness import RandomnessSource
from covey.privacy.secagg import Identity, SumClient
from covey.privacy.secagg.messages import DeliveredShares, KeyList, SumTerms, SurvivorList, UnmaskRequest
from covey.program import Node

ASKED: tuple[type[Message], ...] = (KeyList, DeliveredShares, SurvivorList, UnmaskRequest)
"""What the service asks for, phase by phase."""


class SumParty(Protocol):
    """What a client needs for secure sums beside what the server says."""

    def join(self, client: int, given: Configuration, how: ReportTerms, terms: SumTerms) -> SumClient:
        """Its part in the sum of a round; WireError where it refuses the terms."""
        ...


@dataclass(frozen=True, slots=True)
class EnrolledParty:
    """A client with a lasting identity.

    Args:
        identity: Of a client; a deployed client has its own only.
        directory: The public identities of all, which must not come from the server.
        randomness: Where its keys, seeds and shares come from.
        least: It takes no part in sums that fewer clients can open.
        context: What of the run all clients must have been told alike.
    """

    identity: Callable[[int], Identity]
    directory: Mapping[int, bytes]
    randomness: RandomnessSource
    least: int = 2
    context: bytes = b""

    def join(self, client: int, given: Configuration, how: ReportTerms, terms: SumTerms) -> SumClient:
        chance = self.randomness.of("client", client, given.number)
        return SumClient(
            client, terms, self.identity(client), self.directory, least=self.least,
            about=origin(given, how, self.context), randomness=chance,
        )  # fmt: skip


class SecureVisit:
    """One client's part in one round."""

    def __init__(
        self, node: Node, given: Configuration, training: ClientTraining, party: SumParty, news: SumNews
    ) -> None:
        self.node, self.given, self.training, self.party, self.news = node, given, training, party, news
        self.done: LocalResult | None = None

    async def report(self) -> ComeBack | Departed:
        """Answer the service phase by phase, until it says when to come again, or its aggregator is lost."""
        node, to = self.node, self.given.sender
        how = await node.receive_any(ReportTerms, Departed, sender=to)
        if isinstance(how, Departed):
            return how
        terms = await node.receive_any(SumTerms, Departed, sender=to)
        if isinstance(terms, Departed):
            return terms
        assert isinstance(how, ReportTerms) and isinstance(terms, SumTerms)
        declined = True
        try:
            mine = self.party.join(node.rank, self.given, how, terms)
            declined = False
            await node.send(to, mine.advertise())
            while True:
                asked = await node.receive_any(*ASKED, ComeBack, Departed, sender=to)
                if isinstance(asked, ComeBack | Departed):
                    mine.forget()
                    return asked
                await node.send(to, self.answer(mine, how, asked), loan=True)
                if isinstance(asked, UnmaskRequest):
                    self.news.opens(self.given.number, len(asked.survivors))
                if isinstance(asked, KeyList):
                    await self.train()
        except (WireError, PlanError) as error:
            self.news.withdrew(self.given.number, str(error))
            await node.send(to, SumWithdrawal(self.given.number, str(error) if declined else ""))
            answer = await node.receive_any(ComeBack, Departed, sender=to)
            assert isinstance(answer, ComeBack | Departed)
            return answer

    async def train(self) -> None:
        work = ClientWork(self.training, self.node.rank, self.given)
        self.done = await self.node.compute(work, self.training.load(self.node.rank))

    def answer(self, mine: SumClient, how: ReportTerms, asked: Message) -> Message:
        """What this client says in a phase."""
        match asked:
            case KeyList():
                return mine.share(asked)
            case DeliveredShares():
                if self.done is None:
                    raise WireError("the server delivered shares before it listed keys")
                numbers = ReportNumbers(how, mine.terms.largest, mine.terms.bits)
                return mine.mask(asked, numbers.of(self.done, self.given.buffers))
            case SurvivorList():
                return mine.endorse(asked)
            case UnmaskRequest():
                return mine.unmask(asked)
        raise AssertionError(f"nobody receives a {type(asked).__name__} here")


def reporting_securely(party: SumParty, news: SumNews | None = None) -> SecureReporting:
    """What clients of this party do when they are chosen."""
    heard = news or SumNews()
    return lambda node, given, training: SecureVisit(node, given, training, party, heard).report()
