"""A new version gets a share of the requests, until its answers say whether it may have all."""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from covey.errors import PlanError
from covey.inference.messages import InferenceAnswer, InferenceFeedback, InferenceRequest, TrialDecided
from covey.inference.request_desk import FULL, LATE, OK
from covey.inference.versions.choice import NothingOverdue
from covey.message import raw

STABLE, NEW = 0, 1
KEY = 16  # bytes
SURE = 2.33  # standard deviations of a bound that holds in 99 of 100 cases
SOON = 20  # answers after which a new version may be withdrawn
LONGEST = 4  # times `enough` answers: then shares decide, also those that chance may have made


@dataclass(frozen=True, kw_only=True, slots=True)
class CanarySettings:
    """How a new version is tried.

    Args:
        share: Of the requests that it gets.
        enough: Answers of it after which it is promoted, if its shares of failed and of late ones are not larger than
            allowed. It is withdrawn when one of them surely is, or after four times as many.
        objective: Seconds after which an answer is late.
        worse: By how much each of these shares may exceed that of the old version.
        promised: The share of answers that should not be late.
    """

    share: float
    enough: int = 1000
    objective: float
    worse: float = 0.01
    promised: float = 0.99

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise PlanError(f"--canary: a share of {self.share:.3g} is not between 0 and 100 %")


@dataclass(slots=True)
class AnswerCounts:
    """Answers of a version, and those of them that failed or were late.

    They are judged apart: an old version that is too slow for its load is no excuse for a new one that fails.
    """

    answers: int = 0
    failed: int = 0
    late: int = 0  # also those that a full queue or the deadline has refused

    @property
    def shares(self) -> tuple[float, float]:
        """Of failed and of late ones."""
        return self.failed / max(1, self.answers), self.late / max(1, self.answers)


def at_least(share: float, count: int) -> float:
    """What the true share is at least, if so many gave this one (Wilson's lower bound)."""
    square = SURE * SURE
    spread = math.sqrt(share * (1 - share) / count + square / (4 * count**2))
    return (share + square / (2 * count) - SURE * spread) / (1 + square / count)


class Canary(NothingOverdue):
    """Version 0 is the old one, version 1 the new one; equal inputs always go to the same."""

    count = 2

    def __init__(self, settings: CanarySettings) -> None:
        self.settings = settings
        self.counts = AnswerCounts(), AnswerCounts()
        self.winner: int | None = None
        self._arrived: dict[int, float] = {}
        self._news: TrialDecided | None = None
        self._key = secrets.token_bytes(KEY)  # no client can choose inputs for one of the versions

    def choose(self, request: InferenceRequest, now: float, rng: Random) -> Sequence[int]:
        self._arrived[request.ticket] = now
        if self.winner is not None:
            return (self.winner,)
        return (NEW if place_of(request, self._key) < self.settings.share else STABLE,)

    def collect(self, version: int, answer: InferenceAnswer, now: float) -> InferenceAnswer | None:
        took = now - self._arrived.pop(answer.ticket)
        count = self.counts[version]
        count.answers += 1
        if answer.status in (FULL, LATE) or (answer.status == OK and took > self.settings.objective):
            count.late += 1
        elif answer.status != OK:
            count.failed += 1
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
        pairs = [(share, before + self.settings.worse) for share, before in zip(new.shares, old.shares, strict=True)]
        if new.answers >= SOON and any(at_least(share, new.answers) > allowed for share, allowed in pairs):
            self._decide(STABLE)
        elif new.answers >= self.settings.enough and all(share <= allowed for share, allowed in pairs):
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
        missed = 1 - self.settings.promised
        if new.shares[1] > missed:
            both = "both versions miss" if old.shares[1] > missed else "the new version misses"
            said += f"; {both} the objective"
        elif old.shares[1] > missed:
            said += "; the old version misses the objective"
        self._news = TrialDecided(winner, said)


def place_of(request: InferenceRequest, key: bytes) -> float:
    """A number from 0 to 1 that depends on the input and the key only."""
    digest = hashlib.blake2b(raw(request.row.parts[0]), key=key, digest_size=8).digest()
    return int.from_bytes(digest) / 2**64
