"""A privacy budget: what may be spent, what was, and whether the next round would spend more than is left."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from covey.errors import CheckpointError, PlanError
from covey.privacy.accountant import LEAST_DELTA, NoisyRounds, epsilon_of


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivacyBudget:
    """A value that a checkpoint keeps; a round is spent before its noisy mean is used.

    Args:
        epsilon: What may be spent.
        delta: At which delta.
        spent: The rounds so far, as (noise, rate, rounds).

    >>> PrivacyBudget(epsilon=3.0, delta=1e-5).after(1.0, 1.0).left(1.0, 1.0)
    False
    """

    epsilon: float
    delta: float
    spent: tuple[tuple[float, float, int], ...] = ()

    def check(self) -> None:
        if not (math.isfinite(self.epsilon) and self.epsilon > 0):
            raise PlanError(f"epsilon={self.epsilon}: a number above 0 is needed")
        self._check_spent()

    def _check_spent(self) -> None:
        if not LEAST_DELTA <= self.delta < 1:
            raise PlanError(f"delta={self.delta}: from {LEAST_DELTA} to 1")
        for noise, rate, rounds in self.spent:
            NoisyRounds(noise or 1.0, rate, rounds).check()

    @property
    def used(self) -> float:
        """The epsilon of the rounds so far; without noise there is no bound."""
        if any(noise == 0 and rounds for noise, _, rounds in self.spent):
            return math.inf
        return epsilon_of([NoisyRounds(*one) for one in self.spent], self.delta)

    def after(self, noise: float, rate: float, rounds: int = 1) -> PrivacyBudget:
        """The budget when that many rounds more have been spent."""
        *before, last = self.spent or ((noise, rate, 0),)
        alike = last[:2] == (noise, rate)
        now = [(noise, rate, last[2] + rounds)] if alike else [last, (noise, rate, rounds)]
        return replace(self, spent=(*before, *now))

    def left(self, noise: float, rate: float) -> bool:
        """Whether one round more is within the budget; if not, the run ends."""
        return self.after(noise, rate).used <= self.epsilon

    def rounds_left(self, noise: float, rate: float, most: int = 1_000_000) -> int:
        """How many rounds more are within the budget, at most `most`."""
        low, high = 0, 1  # the first fits, the second does not
        while high <= most and self.after(noise, rate, high).used <= self.epsilon:
            low, high = high, 2 * high
        high = min(high, most + 1)
        while high - low > 1:
            middle = (low + high) // 2
            fits = self.after(noise, rate, middle).used <= self.epsilon
            low, high = (middle, high) if fits else (low, middle)
        return low

    def resumed(self, kept: dict[str, Any]) -> PrivacyBudget:
        """This budget with what a checkpoint says was spent; a larger epsilon is allowed, and another delta is not."""
        try:
            spent = tuple((float(noise), float(rate), int(rounds)) for noise, rate, rounds in kept["spent"])
            found = PrivacyBudget(epsilon=self.epsilon, delta=float(kept["delta"]), spent=spent)
            found._check_spent()  # without a limit only what was spent is counted
        except (LookupError, TypeError, ValueError, OverflowError, PlanError) as error:
            raise CheckpointError(f"the checkpoint's privacy budget cannot be read: {error!r}") from None
        if found.delta != self.delta:
            raise CheckpointError(f"the checkpoint counts epsilon at delta={found.delta}, not at {self.delta}")
        return found

    def kept(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"delta": self.delta, "spent": [list(one) for one in self.spent]}
