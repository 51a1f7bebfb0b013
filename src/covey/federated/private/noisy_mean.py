"""The noisy mean of a round's updates, which the service itself clips and covers; and who is drawn for a round."""

from __future__ import annotations

from typing import Any

from covey.federated.private.private_settings import ClientPrivacy, weight_of
from covey.federated.rounds import RoundTerms, Selection, SelectionState
from covey.privacy.clipped_noise import uniform
from covey.privacy.randomness import Randomness
from covey.vector import Vector


class NoisyMean:
    """Adds up clipped updates; the result is divided by the weight that was expected, not by the one that came."""

    def __init__(self, privacy: ClientPrivacy, randomness: Randomness) -> None:
        self._privacy, self._randomness = privacy, randomness
        self._sum: Vector | None = None

    def add(self, update: Vector, weight: float) -> None:
        """Another client's update, and the number of its samples."""
        clipped = self._privacy.covered.clipped(update, weight_of(int(weight), self._privacy.cap))
        self._sum = clipped if self._sum is None else self._sum.add_(clipped)

    def result(self) -> Vector:
        assert self._sum is not None, "a round without updates is not aggregated"
        return self._privacy.covered.mean(self._sum, self._randomness)


class PoissonSelection(Selection):
    """Each client that checks in is drawn with the same chance, independently of all others.

    A client is drawn at most once for a round, and selection lasts its whole time: if it ended with enough clients,
    one could take the place of another, and the noise would have to cover both. Who does not check in takes part with
    an even smaller chance.
    """

    def __init__(self, terms: RoundTerms, rate: float, randomness: Randomness) -> None:
        super().__init__(terms)
        self._rate, self._randomness = rate, randomness
        self._drawn: dict[int, bool] = {}

    def check_in(self, client: int) -> bool:
        if client not in self._drawn:
            self._drawn[client] = float(uniform(1, self._randomness)) < self._rate
        if self._drawn[client]:
            self.accepted[client] = None
        return self._drawn[client]

    def state(self, now: float) -> SelectionState:
        if self.deadline is None or now < self.deadline:
            return "open"
        return "ready" if self.accepted else "failed"


class PrivacySpending:
    """What the rounds of a run spend; a round is spent before anybody is configured for it, whatever comes of it."""

    def __init__(self, privacy: ClientPrivacy, rounds: int) -> None:
        self.noise, self.rate, self.budget = privacy.covered.noise, privacy.covered.rate, privacy.budget
        limited = self.noise > 0 and self.budget.epsilon < float("inf")
        self._left = self.budget.rounds_left(self.noise, self.rate, rounds) if limited else rounds

    @property
    def left(self) -> bool:
        """Whether another round is within the budget."""
        return self._left > 0

    def spend(self) -> dict[str, Any]:
        """A round begins; what a checkpoint keeps of all that was spent."""
        assert self.left, "a round began that the privacy budget does not allow"
        self._left -= 1
        self.budget = self.budget.after(self.noise, self.rate)
        return self.budget.kept()

    def resume(self, kept: dict[str, Any] | None) -> None:
        """Go on with what a checkpoint says was spent, if there is one."""
        if kept is None:
            return
        before = self.budget
        self.budget = before.resumed(kept)
        if self.noise > 0 and before.epsilon < float("inf"):
            self._left = self.budget.rounds_left(self.noise, self.rate, self._left)
