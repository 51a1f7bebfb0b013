"""Settings of a lab: `lab(hosts=3, rate="100mbit,100mbit,10mbit", cpu=0.5)`."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from covey.errors import PlanError
from covey.simulate.units import BytesPerSecond, parse_rate

MOST = 200  # hosts, so that each finds its address in a network of 254
UNSHAPED, WHOLE = "unshaped", "all"
SLOWEST = BytesPerSecond(1000.0)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LabSettings:
    """For each host: the rate of its link each way (None: unshaped), and how many cores it may use (None: all)."""

    rates: tuple[BytesPerSecond | None, ...]
    cpus: tuple[float | None, ...]

    @property
    def hosts(self) -> list[str]:
        return [f"h{number}" for number in range(len(self.rates))]


def read(workers: int, hosts: int | None = None, rate: str = UNSHAPED, cpu: str = "") -> LabSettings:
    """The settings as they were written; a list of one value per host also says how many hosts there are."""
    rates, cpus = _list(rate), _list(cpu)
    listed = max(len(rates), len(cpus))
    count = hosts if hosts is not None else listed if listed > 1 else workers
    if not 1 <= count <= MOST:
        raise PlanError(f"lab(hosts={count}): write how many, from 1 to {MOST}")
    return LabSettings(_each("rate", rates, count, _rate), _each("cpu", cpus, count, lambda text: _cpu(text, count)))


def _list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]


def _each(name: str, texts: list[str], count: int, convert: Callable[[str], T]) -> tuple[T, ...]:
    """One value for each of the hosts."""
    if len(texts) not in (1, count):
        raise PlanError(f"lab({name}={','.join(texts)}): {len(texts)} values for {count} hosts; give one, or {count}")
    try:
        values = [convert(text) for text in texts]
    except PlanError as error:
        raise PlanError(f"lab({name}={','.join(texts)}): {error}") from None
    return tuple(values if len(values) == count else values * count)


def _rate(text: str) -> BytesPerSecond | None:
    if text == UNSHAPED:
        return None
    if (rate := parse_rate(text)) < SLOWEST:
        raise PlanError(f"{text} is too slow for anything to arrive; from 8kbit on it works")
    return rate


def _cpu(text: str, hosts: int) -> float | None:
    """The cores of a host; by default, an equal share of this machine's."""
    if text == WHOLE:
        return None
    try:
        share = float(text) if text else len(os.sched_getaffinity(0)) / hosts
    except ValueError:
        share = math.nan
    if not 0.01 <= share <= 4096:
        raise PlanError(f"write the cores that a host may use, such as 0.5 (at least 0.01), or {WHOLE!r} for no quota")
    return share
