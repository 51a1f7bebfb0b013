"""What the front asks whoever chooses versions."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Protocol

from covey.inference.messages import InferenceAnswer, InferenceFeedback, InferenceRequest, TrialDecided

NOTHING_TO_CHOOSE = (
    "one version answers everything: serve others too, with --also NAME, and feedback chooses among them"
)


class VersionChoice(Protocol):
    """Chooses versions, each by its number, from 0."""

    @property
    def count(self) -> int:
        """How many versions there are."""
        ...

    def choose(self, request: InferenceRequest, now: float, rng: Random) -> Sequence[int]:
        """The versions that compute this request."""
        ...

    def collect(self, version: int, answer: InferenceAnswer, now: float) -> InferenceAnswer | None:
        """A version has answered; what its client gets because of that, if anything."""
        ...

    def overdue(self, now: float) -> Sequence[InferenceAnswer]:
        """What clients get now, without the versions that have not answered yet."""
        ...

    def patience(self, now: float) -> float | None:
        """Seconds until there may be something overdue."""
        ...

    def objection(self, feedback: InferenceFeedback) -> str:
        """Why this feedback would change nothing, and what would; empty if it is of use."""
        ...

    def learn(self, feedback: InferenceFeedback) -> None:
        """A client says how good an answer was; only feedback without an objection comes here."""
        ...

    def decided(self) -> TrialDecided | None:
        """That a trial is over, once; the version that lost gets no more requests."""
        ...

    def shares(self) -> Sequence[float]:
        """Of requests, or of votes, that each version has now."""
        ...


class NothingOverdue:
    """What answers each request with one version waits for no others."""

    def overdue(self, now: float) -> Sequence[InferenceAnswer]:
        return ()

    def patience(self, now: float) -> float | None:
        return None


class OneVersion(NothingOverdue):
    """There is nothing to choose."""

    count = 1

    def choose(self, request: InferenceRequest, now: float, rng: Random) -> Sequence[int]:
        return (0,)

    def collect(self, version: int, answer: InferenceAnswer, now: float) -> InferenceAnswer | None:
        return answer

    def objection(self, feedback: InferenceFeedback) -> str:
        return NOTHING_TO_CHOOSE

    def learn(self, feedback: InferenceFeedback) -> None:
        """Nothing depends on it."""

    def decided(self) -> None:
        return None

    def shares(self) -> Sequence[float]:
        return (1.0,)
