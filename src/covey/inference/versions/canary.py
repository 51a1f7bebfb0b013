"""A new version gets a share of the requests, until its answers say whether it may have all."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from covey.errors import PlanError
from covey.inference.messages import InferenceAnswer, InferenceFeedback, InferenceRequest, TrialDecided
from covey.inference.versions.choice import NothingOverdue
from covey.message import raw

STABLE, NEW = 0, 1
SURE = 2.33  # standard deviations of a bound that holds in 99 of 100 cases
SOON = 20  # answers after which a new version may be withdrawn
LONGEST = 4  # times `enough` answers: then shares decide, also those that chance may have made


@dataclass(frozen=True, kw_only=True, slots=True)
class CanarySettings:
    """How a new version is tried.

    Args:
        share: Of the requests that it gets.
        enough: Answers of it after which it is promoted, if its share of bad ones is not larger than allowed. It is
            withdrawn when it is surely worse, or after four times as many.
        objective: Seconds after which an answer is late.
        worse: By how much the share of its bad answers may exceed that of the old version.
    """

    share: float
    enough: int = 1000
    objective: float
    worse: float = 0.01

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise PlanError(f"--canary: a share of {self.share:.3g} is not between 0 and 100 %")


@dataclass(slots=True)
class AnswerCounts:
    """Answers of a version, and those of them that failed or were late."""

    answers: int = 0
    failed: int = 0
    late: int = 0

    @property
    def bad(self) -> float:
        """The share of those that were either."""
        return (self.failed + self.late) / self.answers if self.answers else 0.0

    @property
    def surely_bad(self) -> float:
        """What the true share is at least (Wilson's lower bound)."""
        count, square = self.answers, SURE * SURE
        spread = math.sqrt(self.bad * (1 - self.bad) / count + square / (4 * count**2))
        return (self.bad + square / (2 * count) - SURE * spread) / (1 + square / count)


class Canary(NothingOverdue):
    """Version 0 is the old one, version 1 the new one; equal inputs always go to the same."""

    count = 2

    def __init__(self, settings: CanarySettings) -> None:
        self.settings = settings
        self.counts = AnswerCounts(), AnswerCounts()
        self.winner: int | None = None
        self._arrived: dict[int, float] = {}
        self._news: TrialDecided | None = None

    def choose(self, request: InferenceRequest, now: float, rng: Random) -> Sequence[int]:
        self._arrived[request.ticket] = now
        if self.winner is not None:
            return (self.winner,)
        return (NEW if place_of(request) < self.settings.share else STABLE,)

    def collect(self, version: int, answer: InferenceAnswer, now: float) -> InferenceAnswer | None:
        took = now - self._arrived.pop(answer.ticket)
        count = self.counts[version]
        count.answers += 1
        if answer.status != 200:
            count.failed += 1
        elif took > self.settings.objective:
            count.late += 1
        if version == NEW and self.winner is None:
            self._judge()
        return answer

    def objection(self, feedback: InferenceFeedback) -> str:
        return "errors and times judge a canary: serve both versions with --also NAME, and feedback chooses among them"

    def learn(self, feedback: InferenceFeedback) -> None:
        """Only errors and times count here."""

    def decided(self) -> TrialDecided | None:
        news, self._news = self._news, None
        return news

    def shares(self) -> Sequence[float]:
        new = self.settings.share if self.winner is None else float(self.winner)
        return 1 - new, new

    def _judge(self) -> None:
        old, new = self.counts
        allowed = old.bad + self.settings.worse
        if new.answers >= SOON and new.surely_bad > allowed:
            self._decide(STABLE)
        elif new.answers >= self.settings.enough and new.bad <= allowed:
            self._decide(NEW)
        elif new.answers >= LONGEST * self.settings.enough:
            self._decide(STABLE)

    def _decide(self, winner: int) -> None:
        self.winner = winner
        old, new = self.counts
        said = ", ".join(
            f"{count.failed} failed and {count.late} late of {count.answers} answers of the {name} version"
            for name, count in (("new", new), ("old", old))
        )
        self._news = TrialDecided(winner, said)


def place_of(request: InferenceRequest) -> float:
    """A number from 0 to 1 that depends on the input only."""
    digest = hashlib.blake2b(raw(request.row.parts[0]), digest_size=8).digest()
    return int.from_bytes(digest) / 2**64
