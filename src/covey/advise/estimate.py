"""How sure is a number? A value that is known up to a factor, with its 90 % interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

NINETY = 1.645  # standard deviations on either side, between which a normal number lies with a chance of 90 %
MEDIAN = 1.2  # times the standard error of a mean: that of a median
BELIEF = 2  # measurements that what is known beforehand of their spread counts for


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number whose logarithm is normal, with this standard deviation."""

    value: float
    error: float = 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """Where it lies with a chance of 90 %."""
        factor = math.exp(NINETY * self.error)
        return self.value / factor, self.value * factor

    def __mul__(self, other: Estimate) -> Estimate:
        return Estimate(self.value * other.value, math.hypot(self.error, other.error))

    def __truediv__(self, other: Estimate) -> Estimate:
        return Estimate(self.value / other.value, math.hypot(self.error, other.error))

    def joined(self, other: Estimate) -> Estimate:
        """What two independent estimates of one number say together."""
        mine, theirs = self.error**-2, other.error**-2
        middle = (mine * math.log(self.value) + theirs * math.log(other.value)) / (mine + theirs)
        return Estimate(math.exp(middle), (mine + theirs) ** -0.5)

    def scaled(self, factor: float) -> Estimate:
        return Estimate(self.value * factor, self.error)

    def before(self, other: Estimate) -> bool:
        """Whether it is smaller, as far as 90 % can tell."""
        return math.log(other.value / self.value) > NINETY * math.hypot(self.error, other.error)


def estimated(values: Sequence[float], single: float) -> Estimate:
    """The middle of repeated measurements; `single` is the error of one, as far as it is known beforehand."""
    loose = MEDIAN if len(values) > 2 else 1.0
    return Estimate(median(values), loose * spread(values, single) / math.sqrt(len(values)))


def spread(values: Sequence[float], single: float) -> float:
    """The error of one measurement, from what is known of it beforehand (`single`) and how far these lie apart.

    >>> spread([2.0], 0.05), round(spread([1.0, 2.0, 4.0], 0.05), 2)
    (0.05, 0.49)
    """
    logarithms = [math.log(value) for value in values]
    around = fmean(logarithms)
    squares = BELIEF * single**2 + sum((one - around) ** 2 for one in logarithms)
    return math.sqrt(squares / (BELIEF + len(values) - 1))
