"""How a task is trained so that its model tells little about any one sample."""

from __future__ import annotations

import math
from dataclasses import dataclass

from covey.errors import PlanError


@dataclass(frozen=True, kw_only=True, slots=True)
class PrivateSgd:
    """DP-SGD (Abadi et al. 2016), for `covey.Task(private=…)`: noise covers what any one sample changes.

    Args:
        noise: The standard deviation of the noise in the sum of a batch's gradients, in multiples of `clip`.
        clip: The largest norm of the gradient of one sample.
        delta: At which the result counts epsilon: far less than one divided by the number of samples.
        seed: Makes noise and samples follow from a number; in virtual time the seed of the run does. Anywhere else it
            protects nothing: without it they come from the operating system.

    >>> covey.PrivateSgd(noise=1.1, clip=1.0).delta
    1e-05
    """

    noise: float
    clip: float = 1.0
    delta: float = 1e-5
    seed: int | None = None

    def __post_init__(self) -> None:
        for name in ("noise", "clip"):
            if not (isinstance(value := getattr(self, name), int | float) and math.isfinite(value) and value > 0):
                raise PlanError(f"PrivateSgd: {name} must be more than 0, not {value!r}")
        if not (isinstance(self.delta, float) and 1e-10 <= self.delta < 1):
            raise PlanError(f"PrivateSgd: delta must be from 1e-10 to 1, not {self.delta!r}")
