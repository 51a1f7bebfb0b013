"""What may stand beside a federated strategy: `+ secagg(…)`, sums that nobody can open, and `+ dp(…)`, noise."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Literal

from covey.errors import PlanError
from covey.names import option
from covey.privacy.accountant import noise_for
from covey.privacy.budget import PrivacyBudget
from covey.privacy.clipped_noise import ClippedNoise

MOST_CLIENTS = 4096  # of one sum


@dataclass(frozen=True, kw_only=True, slots=True)
class SecAgg:
    """The service learns the sum of the reports, and none of them (Bonawitz et al. 2017, Bell et al. 2020).

    Args:
        threshold: Of the chosen clients that have to help to open a sum.
        neighbours: With how many others each client shares masks and secrets.
        clip: The largest number of a report; what is larger is moved there.
        bits: Of a masked number.
    """

    threshold: float | str = "2/3"
    neighbours: int | Literal["all"] = "all"
    clip: float = 8.0
    bits: Literal[32, 64] = 32

    @property
    def share(self) -> float:
        """The threshold as a number."""
        try:
            return float(Fraction(self.threshold))
        except (ValueError, ZeroDivisionError):
            raise PlanError(f"secagg(threshold={self.threshold}): a number above 1/2, such as 2/3") from None

    @property
    def near(self) -> int:
        """The neighbours of a client; 0: all."""
        return 0 if self.neighbours == "all" else self.neighbours

    def check(self, goal: int) -> None:
        """Refuse what no sum of so many clients can be taken with."""
        if not 0.5 < self.share <= 1:
            raise PlanError(
                f"secagg(threshold={self.threshold}): above 1/2 and at most 1, else two halves of the clients could "
                "open both secrets of one"
            )
        if self.neighbours != "all" and self.neighbours < 2:
            raise PlanError(f"secagg(neighbours={self.neighbours}): all, or at least 2")
        if not (math.isfinite(self.clip) and self.clip > 0):
            raise PlanError(f"secagg(clip={self.clip:g}): a number above 0 is needed")
        if not 2 <= goal <= MOST_CLIENTS:
            raise PlanError(f"secagg with {goal} chosen clients: a sum has from 2 to {MOST_CLIENTS}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Dp:
    """Clients are drawn by chance, their updates are clipped, and noise covers their mean (McMahan et al. 2018).

    Args:
        noise: Its standard deviation in the sum, in multiples of `clip`; None: what `--epsilon` leaves room for.
        clip: The largest norm of a client's update.
        delta: At which epsilon is counted: far less than one divided by the number of clients.
        cap: The samples from which on a client weighs 1; fewer weigh less. None: all weigh 1.
    """

    noise: float | None = None
    clip: float = 1.0
    delta: float = 1e-5
    cap: int | None = None

    def planned(self, sizes: list[int], rate: float, rounds: int, limit: float | None) -> ClientPrivacy:
        """What this comes to for a population, of which each takes part with the chance `rate`."""
        if self.cap is not None and self.cap < 1:
            raise PlanError(f"dp(cap={self.cap}): at least 1 sample")
        noise, budget = self.noise, PrivacyBudget(epsilon=math.inf if limit is None else limit, delta=self.delta)
        replace(budget, epsilon=1.0 if limit is None else limit).check()
        if noise is None and limit is None:
            raise PlanError(f"dp needs noise=…, such as dp(noise=1), or {option('epsilon')}, which finds the noise")
        if noise is None:
            assert limit is not None
            noise = noise_for(limit, rate, rounds, self.delta)
        if noise == 0 and limit is not None:
            raise PlanError(f"dp(noise=0) spends all privacy at once: omit {option('epsilon')}, or the noise")
        total = sum(weight_of(size, self.cap or 0) for size in sizes)
        covered = ClippedNoise(noise=noise, clip=self.clip, rate=rate, total=total)
        covered.check()
        return ClientPrivacy(covered=covered, budget=budget, cap=self.cap or 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientPrivacy:
    """DP-FedAvg for a population.

    Args:
        covered: Clip, noise, and the fixed denominator.
        budget: What may be spent, and what was.
        cap: The samples from which on a client weighs 1; 0: all weigh 1.
    """

    covered: ClippedNoise
    budget: PrivacyBudget
    cap: int


def weight_of(samples: int, cap: float) -> float:
    """What a client's update counts: 1, or less if it has fewer samples than `cap`."""
    return min(samples / cap, 1.0) if cap else 1.0


BESIDE: Mapping[str, type[Any]] = {"secagg": SecAgg, "dp": Dp}
"""What a SPEC may add to a federated strategy."""
