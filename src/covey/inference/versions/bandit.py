"""Several versions, judged by feedback (Crankshaw et al. 2017, Clipper, section 5; Auer et al. 2002, Exp3 and Exp4)."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from random import Random
from typing import Any

from covey.inference.messages import InferenceAnswer, InferenceFeedback, InferenceRequest
from covey.inference.versions.choice import NothingOverdue

REMEMBERED = 10_000  # answers that feedback may still come for


class VersionWeights:
    """How much each version is worth, as its losses tell; they sum to 1."""

    def __init__(self, count: int, rate: float) -> None:
        self.rate = rate
        self._logs = [0.0] * count

    @property
    def now(self) -> list[float]:
        highest = max(self._logs)
        found = [math.exp(log - highest) for log in self._logs]
        return [one / sum(found) for one in found]

    def punish(self, version: int, loss: float) -> None:
        self._logs[version] -= self.rate * loss


class Exp3(NothingOverdue):
    """One version computes each request: the better ones more often, all of them sometimes.

    Args:
        count: How many versions there are.
        explore: The share of requests that any version may get.
        rate: How much one loss changes.
    """

    def __init__(self, count: int, explore: float = 0.1, rate: float = 0.1) -> None:
        self.count, self.explore = count, explore
        self.weights = VersionWeights(count, rate)
        self._chosen: OrderedDict[int, tuple[int, float]] = OrderedDict()  # by ticket: which, and how probable it was

    def choose(self, request: InferenceRequest, now: float, rng: Random) -> Sequence[int]:
        chances = self.shares()
        (version,) = rng.choices(range(self.count), chances)
        _remember(self._chosen, request.ticket, (version, chances[version]))
        return (version,)

    def collect(self, version: int, answer: InferenceAnswer, now: float) -> InferenceAnswer | None:
        return answer

    def objection(self, feedback: InferenceFeedback) -> str:
        if feedback.loss is None:
            return "exp3 reads losses: send `loss`, from 0 to 1, or serve with --select exp4, which reads labels, too"
        return "" if feedback.ticket in self._chosen else _unknown(feedback.ticket)

    def learn(self, feedback: InferenceFeedback) -> None:
        """A loss counts more, the less probable it was that this version would be asked (it is seen less often)."""
        if (chosen := self._chosen.pop(feedback.ticket, None)) and feedback.loss is not None:
            version, chance = chosen
            self.weights.punish(version, feedback.loss / chance)

    def decided(self) -> None:
        return None

    def shares(self) -> Sequence[float]:
        return [(1 - self.explore) * weight + self.explore / self.count for weight in self.weights.now]


@dataclass(slots=True)
class Ballot:
    """What the versions have said to one request."""

    due: float  # when the client is answered without the versions that have said nothing
    answers: dict[int, InferenceAnswer] = field(default_factory=dict)  # until the client is answered: they are large
    classes: dict[int, int] = field(default_factory=dict)  # that each version names
    given: int | None = None  # the class that the client was told
    numbers: int = 0  # of an answer: so many classes there are

    def note(self, version: int, answer: InferenceAnswer) -> None:
        """A version has answered."""
        if answer.status == 200:
            self.classes[version] = int(answer.row.parts[0].argmax())
            self.numbers = max(self.numbers, answer.row.parts[0].numel())


class Exp4:
    """All versions compute each request, and vote with their weights; the confidence is the weight of those that agree.

    Args:
        count: How many versions there are.
        patience: Seconds after which a client is not kept waiting for the slower ones.
        rate: How much one wrong answer changes.
    """

    def __init__(self, count: int, patience: float, rate: float = 0.2) -> None:
        self.count, self._patience = count, patience
        self.weights = VersionWeights(count, rate)
        self._open: OrderedDict[int, Ballot] = OrderedDict()  # of clients that wait, in the order of asking
        self._votes: OrderedDict[int, Ballot] = OrderedDict()

    def choose(self, request: InferenceRequest, now: float, rng: Random) -> Sequence[int]:
        self._open[request.ticket] = vote = Ballot(now + self._patience)
        _remember(self._votes, request.ticket, vote)
        return range(self.count)

    def collect(self, version: int, answer: InferenceAnswer, now: float) -> InferenceAnswer | None:
        if (vote := self._open.get(answer.ticket) or self._votes.get(answer.ticket)) is None:
            return None
        vote.note(version, answer)
        if answer.ticket not in self._open:
            return None
        vote.answers[version] = answer
        if len(vote.answers) < self.count:
            return None
        del self._open[answer.ticket]
        return self._result(vote)

    def overdue(self, now: float) -> Sequence[InferenceAnswer]:
        """As in Clipper, stragglers are not waited for; what they say later is still judged by feedback."""
        due = takewhile(lambda one: one[1].due <= now, self._open.items())
        answered = [ticket for ticket, vote in due if vote.classes]
        return [self._result(self._open.pop(ticket)) for ticket in answered]

    def patience(self, now: float) -> float | None:
        """Those that are due and have no answer at all are answered with the first one, when it comes."""
        return next((vote.due - now for vote in self._open.values() if vote.due > now), None)

    def objection(self, feedback: InferenceFeedback) -> str:
        if (vote := self._votes.get(feedback.ticket)) is None:
            return _unknown(feedback.ticket)
        if feedback.label is not None and feedback.label >= vote.numbers > 0:
            return f"no version has a class {feedback.label}: send a `label` from 0 to {vote.numbers - 1}"
        return ""

    def learn(self, feedback: InferenceFeedback) -> None:
        """Each version is judged by what it said, whatever the others did."""
        if (vote := self._votes.pop(feedback.ticket, None)) is None:
            return
        for version, found in vote.classes.items():
            if feedback.label is not None:
                self.weights.punish(version, float(found != feedback.label))
            elif feedback.loss is not None and found == vote.given:
                self.weights.punish(version, feedback.loss)

    def decided(self) -> None:
        return None

    def shares(self) -> Sequence[float]:
        return self.weights.now

    def _result(self, vote: Ballot) -> InferenceAnswer:
        """The answer of the weightiest version among those that agree with the majority."""
        classes, weights, answers = vote.classes, self.weights.now, vote.answers
        vote.answers = {}
        if not classes:
            return answers[0]
        heard = sum(weights[version] for version in classes)
        votes: Mapping[int, float] = {
            label: sum(weights[version] for version, found in classes.items() if found == label)
            for label in sorted(set(classes.values()))
        }
        vote.given = max(votes, key=lambda label: votes[label])
        best = max((one for one in classes if classes[one] == vote.given), key=lambda one: (weights[one], -one))
        found, confidence = answers[best], votes[vote.given] / heard
        return InferenceAnswer(found.ticket, found.status, found.row, version=best, confidence=confidence)


def _remember(known: OrderedDict[int, Any], ticket: int, value: Any) -> None:
    known[ticket] = value
    while len(known) > REMEMBERED:
        known.popitem(last=False)


def _unknown(ticket: int) -> str:
    return f"{ticket:016x} is not the `id` of one of the last {REMEMBERED} answers, or was judged already"
