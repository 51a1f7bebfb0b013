"""When did a metric cross its target? Between the last score that misses it and the first that meets it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from covey.target import Target

ScoreLine = Mapping[str, int | float | None]
"""A line of the history."""


class Crossing(NamedTuple):
    """A moment of training."""

    seconds: float
    samples: int


def value_of(row: ScoreLine, metric: str) -> float:
    """A score, as a kept run may have it too: what is not a number is not written."""
    found = row.get(metric)
    return math.nan if found is None else float(found)


def crossing(before: ScoreLine | None, first: ScoreLine, target: Target) -> Crossing:
    """The moment on the line between two scores; that of the first that meets the target, where there is no line."""
    now = Crossing(value_of(first, "seconds"), int(first["samples"] or 0))
    if before is None:
        return now
    low, high = value_of(before, target.metric), value_of(first, target.metric)
    if not (math.isfinite(low) and math.isfinite(high)):
        return now
    part = (target.value - low) / (high - low)
    since = Crossing(value_of(before, "seconds"), int(before["samples"] or 0))
    return Crossing(
        since.seconds + part * (now.seconds - since.seconds),
        since.samples + max(1, round(part * (now.samples - since.samples))),  # with the sample that crosses it
    )
