"""How does a federated run keep secrets? Which aggregator, which clients, and what the result tells of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from covey.errors import PlanError
from covey.federated.aggregation import MakeAggregation
from covey.federated.aggregator import Aggregator, ShareSizes
from covey.federated.messages import FROM_CLIENTS, CheckIn
from covey.federated.private.noisy_mean import NoisyMean, PoissonSelection, PrivacySpending
from covey.federated.reports.report_form import ReportForm
from covey.federated.rounds import Selection
from covey.message import Message
from covey.observe.facts import PrivacyFacts
from covey.observe.membership import RoundLog
from covey.observe.result import Result
from covey.privacy.randomness import RandomnessSource, SeededSource
from covey.program import Node
from covey.run.federated.client_identities import told_to_all
from covey.run.federated.federated_request import FederatedRequest


@dataclass(slots=True)
class PrivateRun:
    """What of a federated run is kept secret, and from where chance comes.

    Args:
        asked: The run.
        randomness: Of keys, masks, shares, noise, and of who is drawn; deployed runs use the operating system's.
        spending: What rounds spend of a privacy budget.
        directory: The public identities of clients, for secure sums.
        party: The part of simulated clients in secure sums; real ones have their own.
        form: In which reports travel.
        begun: The rounds that were over when this process began: who is drawn from then on has a stream of its own.
    """

    asked: FederatedRequest
    randomness: RandomnessSource
    spending: PrivacySpending | None = None
    directory: Mapping[int, bytes] = field(default_factory=dict)
    party: Any = None
    form: ReportForm | None = None
    begun: int = 0

    @staticmethod
    def of(asked: FederatedRequest, randomness: RandomnessSource | None = None) -> PrivateRun:
        """Of a simulated run: all chance comes from its seed."""
        made = PrivateRun.served(asked, {}, randomness or SeededSource(asked.options.training.seed))
        if asked.strategy.secure:
            made.party = _parties()(asked.population.clients, made.randomness)
            made.directory = made.party.directory
        return made

    @staticmethod
    def served(asked: FederatedRequest, directory: Mapping[int, bytes], randomness: RandomnessSource) -> PrivateRun:
        """Of a service, whose clients come from elsewhere."""
        made = PrivateRun(asked, randomness, directory=directory)
        if asked.privacy:
            made.spending = PrivacySpending(asked.privacy, asked.rounds)
        return made

    @property
    def select(self) -> Callable[[], Selection] | None:
        """Makes the selection of a round."""
        if not self.asked.privacy:
            return None
        terms, rate = self.asked.terms, self.asked.privacy.covered.rate
        drawn = self.randomness.of("drawn", self.begun) if self.begun else self.randomness.of("drawn")
        return lambda: PoissonSelection(terms, rate, drawn)

    @property
    def reporting(self) -> Any:
        """What clients do when they are chosen; None: they report what they have."""
        if self.party is None:
            return None
        from covey.federated.private.secure_client import reporting_securely

        return reporting_securely(self.party)

    @property
    def said_by_clients(self) -> tuple[type[Message], ...]:
        """All that a client may say. Real ones may be anybody's: what else they send is refused unseen."""
        if not self.asked.strategy.secure:
            return FROM_CLIENTS
        from covey.federated.private.secure_aggregator import ANSWERS

        return CheckIn, *ANSWERS

    def aggregator(self, node: Node, sizes: ShareSizes) -> Aggregator:
        """The aggregator of the run's rounds."""
        asked, privacy = self.asked, self.asked.privacy
        if asked.strategy.secure:
            from covey.federated.private.secure_aggregator import SecureAggregator, SumService

            context = b"" if self.party else told_to_all(asked.text, asked.options.training.seed)
            service = SumService(asked.strategy.secure, self.directory, self.randomness, privacy, context)
            return SecureAggregator(node, asked.terms, service, sizes)
        make: MakeAggregation = asked.strategy.aggregation.make
        if privacy:
            make = lambda number: NoisyMean(privacy, self.randomness.of("noise", number))  # noqa: E731
        decode = self.form.decode if self.form else None
        return Aggregator(node, asked.terms, make, sizes, losses=privacy is None, decode=decode)

    def tell(self, result: Result, log: RoundLog) -> None:
        """Write into the result what was kept secret, and what was spent."""
        asked = self.asked
        if not (asked.privacy or asked.strategy.secure):
            return
        told = PrivacyFacts(secure_sums=asked.strategy.secure is not None, randomness=self.randomness.source)
        if told.secure_sums:
            told.smallest_sum = min((one.reports for one in log.rounds if one.state == "committed"), default=None)
        if asked.privacy and self.spending:
            covered, budget = asked.privacy.covered, self.spending.budget
            told.noise, told.clip, told.rate, told.delta = covered.noise, covered.clip, covered.rate, budget.delta
            told.rounds = sum(rounds for _, _, rounds in budget.spent)
            told.epsilon = (budget.used if covered.noise else math.inf) if told.rounds else 0.0
            told.limit = budget.epsilon if math.isfinite(budget.epsilon) else None
            if result.stopped == "budget" and log.begun < asked.rounds:
                declined = log.rounds and log.rounds[-1].declined and log.rounds[-1].state == "abandoned"
                result.stopped = "declined" if declined else result.stopped if self.spending.left else "privacy"
        result.privacy = told


def _parties() -> Any:
    try:
        from covey.federated.private.simulated_parties import simulated_party
    except ModuleNotFoundError as error:
        raise PlanError(f"secagg needs {error.name}: pip install 'covey[federated]'") from None
    return simulated_party
