"""What is told of many measured values."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from itertools import pairwise
from typing import Any


def spread(values: Sequence[float]) -> dict[str, Any]:
    """How many there are, the median, the 95th percentile and the largest."""
    ordered = sorted(values)
    return {
        "count": len(ordered), "median": round(statistics.median(ordered), 3),
        "95th percentile": round(percentile(ordered), 3), "longest": round(ordered[-1], 3),
    }  # fmt: skip


def percentile(ordered: Sequence[float]) -> float:
    """The 95th."""
    return ordered[round(0.95 * (len(ordered) - 1))]


def interval(ratios: Sequence[float]) -> dict[str, float]:
    """The median and a 95 % interval of it, by drawing the ratios again."""
    chance = random.Random(0)
    medians = sorted(statistics.median(chance.choices(ratios, k=len(ratios))) for _ in range(2000))
    found = {"median": statistics.median(ratios), "low": medians[50], "high": medians[1949]}
    return {name: round(value, 4) for name, value in found.items()} | {"count": len(ratios)}


def median_gap(times: Sequence[float]) -> float:
    return statistics.median(after - before for before, after in pairwise(times))
