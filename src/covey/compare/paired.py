"""How much slower is one strategy than another, and how sure is that? Ratios of times of runs with equal seeds.

Pure: a comparison's numbers in, intervals out. docs/compare.md explains the method.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from statistics import fmean, median
from typing import NamedTuple

import msgspec

FEWEST = 3  # pairs of runs below which nothing is said
FINEST = 0.02  # of a time: no two runs are known to differ by less, however alike the others are
SHORTEST = 1e-9  # seconds: initial weights that meet the target do so at 0


class Finish(NamedTuple):
    """When a run reached the target; or else when it ended without."""

    seconds: float
    reached: bool = True


class Ratio(msgspec.Struct, frozen=True, kw_only=True):
    """The time of one strategy in that of another; `high` is null where no bound is known, `value` where none is."""

    value: float | None
    low: float
    high: float | None
    seeds: int  # with which both ran

    @property
    def behind(self) -> bool:
        """Slower for sure."""
        return self.low > 1

    def within(self, factor: float) -> bool:
        """Surely less than this factor away from the other, on either side."""
        return self.high is not None and 1 / factor <= self.low and self.high <= factor


def ratio(mine: Mapping[int, Finish], theirs: Mapping[int, Finish], error: float) -> Ratio:
    """My times in theirs, by the seeds that both have; `error` is the chance that the interval misses the truth.

    Student's interval of the mean logarithm. A run that missed the target bounds its pair on one side only: its time
    up to there counts where that makes the interval wider, and where a pair has no bound on a side, that side is the
    interval of the median (by order statistics), which only asks who was first.
    """
    pairs = [_bounds(mine[seed], theirs[seed]) for seed in sorted(mine.keys() & theirs.keys())]
    lows, highs = [low for low, _ in pairs], [high for _, high in pairs]
    if len(pairs) < FEWEST:
        return Ratio(value=_centre(lows, highs), low=0.0, high=None, seeds=len(pairs))
    low = _low_end(lows, error)
    high = -_low_end([-value for value in highs], error)
    return Ratio(value=_centre(lows, highs), low=_exp(low) or 0.0, high=_exp(high), seeds=len(pairs))


def _bounds(mine: Finish, theirs: Finish) -> tuple[float, float]:
    """Between which values the logarithm of the ratio of a pair lies."""
    logarithm = math.log(max(mine.seconds, SHORTEST) / max(theirs.seconds, SHORTEST))
    return logarithm if theirs.reached else -math.inf, logarithm if mine.reached else math.inf


def _low_end(values: Sequence[float], error: float) -> float:
    """The lower end of a two-sided interval."""
    if all(map(math.isfinite, values)):
        mean, freedom = fmean(values), len(values) - 1
        deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / freedom)
        return mean - student(error, freedom) * max(deviation, FINEST) / math.sqrt(len(values))
    rank = _rank(len(values), error)
    return sorted(values)[rank - 1] if rank else -math.inf


def _centre(lows: Sequence[float], highs: Sequence[float]) -> float | None:
    if not lows:
        return None
    if list(lows) == list(highs):
        return math.exp(fmean(lows))
    low, high = median(lows), median(highs)
    return math.exp(low) if low == high else None  # the middle pair itself has no bound on one side


def _exp(value: float) -> float | None:
    return None if value > 700 else math.exp(value)


def _rank(size: int, error: float) -> int:
    """The largest k for which k-1 or fewer of `size` fair coins show heads with a chance of at most error/2; or 0."""
    chance, k = 0.0, 0
    while k < size and (chance := chance + math.comb(size, k) / 2**size) <= error / 2:
        k += 1
    return k


@cache
def student(error: float, freedom: int) -> float:
    """The value that Student's t exceeds, on either side, with this chance."""
    low, high = 0.0, 1.0
    while student_tail(high, freedom) > error:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if student_tail(middle, freedom) > error else (low, middle)
    return high


def student_tail(value: float, freedom: int) -> float:
    """The chance that Student's t, of whole degrees of freedom, lies further from 0 than this value."""
    # Abramowitz and Stegun, 26.7.3 and 26.7.4
    angle = math.atan(value / math.sqrt(freedom))
    cosine, odd = math.cos(angle), freedom % 2
    term = total = 0.0 if freedom == 1 else cosine if odd else 1.0
    for k in range(1 + odd, freedom - 2, 2):
        term *= cosine * cosine * k / (k + 1)
        total += term
    inside = math.sin(angle) * total
    return 1 - (2 / math.pi * (angle + inside) if odd else inside)
