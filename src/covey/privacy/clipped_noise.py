"""DP-FedAvg with the fixed denominator (McMahan et al. 2018): clip each client's update, add noise to their sum.

Each client takes part with the same chance, independently of the others. The sum is divided by the weight that is
expected to take part, however many did: dividing by the weight that came would let one client change everybody's share.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from covey.errors import PlanError
from covey.privacy.accountant import NoisyRounds
from covey.privacy.randomness import SYSTEM, Randomness
from covey.vector import Vector

ROUNDED = 1 - 1e-6  # so that no clipped update is longer than the clip norm when its numbers are rounded to float32


@dataclass(frozen=True, slots=True, kw_only=True)
class ClippedNoise:
    """How updates are clipped and covered.

    Args:
        noise: The standard deviation of the noise in the sum, in multiples of `clip` (z).
        clip: The largest norm of a client's update (S).
        rate: The chance of a client to take part in a round (q).
        total: The weight of all clients together, whether they take part or not (A); a client's is at most 1.

    >>> ClippedNoise(noise=1.0, clip=0.5, rate=0.1, total=100).deviation
    0.05
    """

    noise: float
    clip: float
    rate: float
    total: float

    def check(self) -> None:
        NoisyRounds(self.noise or 1.0, self.rate, 1).check()
        if not (math.isfinite(self.noise) and self.noise >= 0):
            raise PlanError(f"dp(noise={self.noise}): 0 or more")
        if not self.clip > 0:
            raise PlanError(f"dp(clip={self.clip}): a number above 0 is needed")
        if self.noise and not math.isfinite(self.clip):
            raise PlanError(f"dp(noise={self.noise}) needs a clip norm: noise is measured in it")
        if not (math.isfinite(self.total) and self.total > 0):
            raise PlanError(f"the weight of all clients is {self.total}: above 0")

    @property
    def deviation(self) -> float:
        """The standard deviation of the noise in each number of the mean."""
        return self.noise * self.clip / (self.rate * self.total) if self.noise else 0.0

    def clipped(self, update: Vector, weight: float = 1.0) -> Vector:
        """A client's contribution to the sum: no longer than the clip norm; the server must see none that is not."""
        if not 0 <= weight <= 1:
            raise PlanError(f"a client's weight is {weight}: from 0 to 1, such as min(samples / cap, 1)")
        norm = update.norm()
        if not math.isfinite(norm):
            raise PlanError("the update to clip has NaN or infinite numbers")
        return update * (weight * min(1.0, ROUNDED * self.clip / norm if norm else 1.0))

    def mean(self, total: Vector, randomness: Randomness = SYSTEM) -> Vector:
        """The noisy mean of a sum of contributions; also of none."""
        scale = 1 / (self.rate * self.total)
        return total.map(lambda part: self._noisy(part, scale, randomness))

    def _noisy(self, part: Tensor, scale: float, randomness: Randomness) -> Tensor:
        noise = gaussian(part.numel(), randomness).reshape(part.shape)
        # in double precision until the end: the float32 nearest to a sum says less about it than the sum does
        exact = part.detach().cpu().double().add(noise, alpha=self.noise * self.clip if self.noise else 0.0)
        return exact.mul_(scale).to(part)


def gaussian(count: int, randomness: Randomness = SYSTEM) -> Tensor:
    """Independent numbers of the standard normal distribution (Box and Muller 1958)."""
    pairs = (count + 1) // 2
    radius, angle = uniform(2 * pairs, randomness).chunk(2)
    radius = torch.sqrt(-2 * torch.log(radius))
    return torch.cat([radius * torch.cos(2 * math.pi * angle), radius * torch.sin(2 * math.pi * angle)])[:count]


def uniform(count: int, randomness: Randomness = SYSTEM) -> Tensor:
    """Independent numbers above 0 and below 1, of 52 bits."""
    whole = np.frombuffer(randomness.take(8 * count), dtype="<u8") >> np.uint64(12)
    return torch.from_numpy((whole.astype(np.float64) + 0.5) * 2.0**-52)
