"""How many workers does a run have? A number, or a range in which they come and go."""

from __future__ import annotations

import re
from numbers import Integral
from typing import NamedTuple

from covey.errors import PlanError
from covey.names import option

_RANGE = re.compile(r"([0-9]{1,9})(?::([0-9]{1,9}))?")


class WorkerRange(NamedTuple):
    """The largest number of workers; the smallest if they may come and go, else 0."""

    most: int
    least: int = 0

    @property
    def asked(self) -> int | str:
        """As `covey.fit` takes it."""
        return str(self) if self.least else self.most

    def __str__(self) -> str:
        return f"{self.least}:{self.most}" if self.least else str(self.most)


def parse_workers(given: int | str) -> WorkerRange:
    """The workers that were asked for: 4, or "2:8"."""
    match = _RANGE.fullmatch(given.strip()) if isinstance(given, str) else None
    if match is None and (isinstance(given, bool) or not isinstance(given, Integral)):
        raise PlanError(
            f"{option('workers', given)}: write a number, such as 4, or a range, such as 2:8: at least 2 workers, at "
            "most 8"
        )
    low, high = (int(match[1]), match[2]) if match else (int(given), None)
    if low < 1:
        more = f"; write 1:{high}" if high and int(high) else ""
        raise PlanError(f"{option('workers', given)}: at least 1 is needed{more}")
    if high is None:
        return WorkerRange(low)
    if int(high) < low:
        raise PlanError(
            f"{option('workers', given)}: the smaller number comes first: write {int(high) or 1}:{low}, or the number "
            f"{low} alone"
        )
    return WorkerRange(int(high), low)
