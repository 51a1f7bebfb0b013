"""How many workers does a run have? A number, a range in which they come and go, or as many as are worth it."""

from __future__ import annotations

import re
from numbers import Integral
from typing import NamedTuple

from covey.engines import machine
from covey.errors import PlanError
from covey.names import option

_AUTO = re.compile(r"auto(?::([0-9]{1,9}))?")
_RANGE = re.compile(r"([0-9]{1,9})(?::([0-9]{1,9}))?")


class WorkerRange(NamedTuple):
    """The largest number of workers; the smallest if they may come and go, else 0."""

    most: int
    least: int = 0
    auto: bool = False  # the run finds out itself how many are worth it

    @property
    def asked(self) -> int | str:
        """As `covey.fit` takes it."""
        return str(self) if self.least else self.most

    def __str__(self) -> str:
        if self.auto:
            return f"auto:{self.most}"
        return f"{self.least}:{self.most}" if self.least else str(self.most)


def parse_workers(given: int | str) -> WorkerRange:
    """The workers that were asked for: 4, "2:8", or "auto:8"; "auto" means at most one for each core."""
    if isinstance(given, str) and (auto := _AUTO.fullmatch(given.strip())):
        most = int(auto[1]) if auto[1] else machine.cores()
        if most < 1:
            raise PlanError(f"{option('workers', given)}: at least 1 is needed")
        return WorkerRange(most, 1, auto=True)
    match = _RANGE.fullmatch(given.strip()) if isinstance(given, str) else None
    if match is None and (isinstance(given, bool) or not isinstance(given, Integral)):
        raise PlanError(
            f"{option('workers', given)}: write a number, such as 4, or a range, such as 2:8: at least 2 workers, at "
            "most 8; auto:8 finds out itself how many of 8 are worth it"
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
