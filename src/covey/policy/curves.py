"""How good will a trial be? The learning curve, continued: its mean and how far off that may be."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

POWERS = (0.25, 0.5, 1.0, 2.0)  # of epochs, at which curves flatten
LEAST = 3  # scores that a curve needs
VAGUE = 0.5  # of the size of a score: how far off the guess from fewer scores may be
FLOOR = 1e-3  # of the size of a score: no prediction is surer than this


class Outlook(NamedTuple):
    """A score to come."""

    mean: float
    deviation: float

    def chance(self, target: float) -> float:
        """The probability of a score of at least this."""
        if not math.isfinite(self.mean):
            return 0.0
        return 0.5 * math.erfc((target - self.mean) / (self.deviation * math.sqrt(2)))


def outlook(curve: Sequence[tuple[int, float]], epochs: int) -> Outlook:
    """The score after this many epochs: a mixture of `top - gain · epochs^-power`, weighted by how well each fits."""
    points = [(when, score) for when, score in curve if when > 0 and math.isfinite(score)]
    if not points or not math.isfinite(curve[-1][1]):
        return Outlook(-math.inf, 1.0)
    last = points[-1][1]
    size = max(abs(score) for _, score in points) or 1.0
    if len(points) < LEAST:
        return Outlook(last, VAGUE * size)
    when, scores = np.array([p[0] for p in points], float), np.array([p[1] for p in points])
    means, spreads, weights = [], [], []
    for power in POWERS:
        basis = np.stack([np.ones_like(when), -(when**-power)], axis=1)
        (top, gain), *_ = np.linalg.lstsq(basis, scores, rcond=None)
        if gain < 0:  # it becomes worse: then it stays as it is
            top, gain = last, 0.0
        misfit = float(np.mean((basis @ (top, gain) - scores) ** 2)) + (FLOOR * size) ** 2
        means.append(top - gain * epochs**-power)
        spreads.append(misfit * max(1.0, epochs / when[-1]))
        weights.append(-len(points) / 2 * math.log(misfit))
    share = np.exp(np.array(weights) - max(weights))  # of hundreds of scores, the powers themselves are no numbers
    share /= sum(share)
    mean = float(share @ means)
    variance = float(share @ (np.array(spreads) + (np.array(means) - mean) ** 2))
    return Outlook(mean, math.sqrt(variance))
