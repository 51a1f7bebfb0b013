"""The axes of a chart that is drawn without a library: where a value lies, and which marks an axis has."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

MARKS = 6  # about as many on an axis


@dataclass(frozen=True, slots=True)
class ChartAxis:
    """From a value to a share of the axis' length."""

    low: float
    high: float
    log: bool = False
    names: tuple[str, ...] = ()  # of an axis of words: each is as far from the next
    percent: bool = False

    def at(self, value: float | str) -> float:
        if isinstance(value, str):
            return (self.names.index(value) + 0.5) / len(self.names)
        low, high, here = map(math.log10, (self.low, self.high, value)) if self.log else (self.low, self.high, value)
        return (here - low) / (high - low)

    def shows(self, value: object) -> bool:
        if isinstance(value, str):
            return value in self.names
        return isinstance(value, int | float) and math.isfinite(value) and (value > 0 or not self.log)

    def marks(self) -> list[tuple[float, str]]:
        """Shares of the length, and what is written there."""
        if self.names:
            return [(self.at(name), name) for name in self.names]
        return [(self.at(value), self.written(value)) for value in self._values()]

    def _values(self) -> list[float]:
        if self.log:
            decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            steps = (1, 2, 5) if len(decades) <= 4 else (1,)
            found = [step * 10.0**decade for decade in decades for step in steps]
        else:
            step = _round_step((self.high - self.low) / MARKS)
            first = math.ceil(self.low / step - 1e-9)
            found = [step * number for number in range(first, math.floor(self.high / step + 1e-9) + 1)]
        return [value for value in found if self.low * (1 - 1e-9) <= value <= self.high * (1 + 1e-9)]

    def written(self, value: float) -> str:
        if self.percent:
            return f"{value:.0%}"
        for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
            if abs(value) >= size:
                return f"{value / size:.4g}{unit}"
        return f"{value:.3g}"


def numbers(values: Sequence[float], *, log: bool = False, zero: bool = False, percent: bool = False) -> ChartAxis:
    """An axis for these values, which begins at 0 where asked."""
    values = [value for value in values if math.isfinite(value) and (value > 0 or not log)] or [1.0]
    low, high = min(values), max(values)
    low = min(low, 0.0) if zero and not log else low
    if low == high:
        low, high = (low / 2, 2 * high) if log else (low - (abs(low) or 1) / 2, high + (abs(high) or 1) / 2)
    room = 0.0 if zero else 0.04 * (high - low)
    return ChartAxis(low, high, True, percent=percent) if log else ChartAxis(low - room, high + room, percent=percent)


def words(names: Sequence[str]) -> ChartAxis:
    return ChartAxis(0, 1, names=tuple(dict.fromkeys(names)))


def _round_step(step: float) -> float:
    """The next of 1, 2, 5, 10, … times a power of ten."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= step * (1 - 1e-9))
