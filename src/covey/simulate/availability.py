"""When may a client take part? A function of the seed and the client's number, so that nothing is kept for anybody."""

from __future__ import annotations

import csv
import math
import os
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from covey.errors import PlanError
from covey.simulate.units import parse_duration

Window = tuple[float, float]
"""Since when, and until when, a client may take part."""

DAY = 86_400.0
LONGEST = 6  # hours of a slot, where day and night differ
HORIZON = 10_000  # slots in which a client that never has one is looked for
_MASK = (1 << 64) - 1


def draw(*numbers: int) -> float:
    """A number from 0 to 1 that belongs to these whole numbers: the same whenever and wherever it is drawn."""
    state = 0
    for number in numbers:
        state = _mixed(state, number)
    return (state >> 11) / (1 << 53)


def _mixed(state: int, number: int) -> int:
    """A round of splitmix64 (Steele et al. 2014)."""
    state = (state ^ (number & _MASK)) + 0x9E3779B97F4A7C15 & _MASK
    state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    state = (state ^ state >> 27) * 0x94D049BB133111EB & _MASK
    return state ^ state >> 31


class Availability(Protocol):
    """When clients are idle, charging and on an unmetered network."""

    def window(self, client: int, now: float, seed: int) -> Window | None:
        """The first window of a client that ends after `now`; None: it never comes again.

        Of one that is open already, the beginning may be given later than it was.
        """


@dataclass(frozen=True, slots=True)
class Always:
    """Every client may take part at any time."""

    def window(self, client: int, now: float, seed: int) -> Window | None:
        return 0.0, math.inf


@dataclass(frozen=True, kw_only=True, slots=True)
class Daily:
    """Day and night: of all clients `share` may take part on average, at midnight `swing` times as many as at noon.

    Time is divided into slots, which begin at another moment for each client; chance decides about each slot.
    """

    share: float = 0.3
    swing: float = 4.0
    hours: float = 1.0  # of a slot

    def __post_init__(self) -> None:
        if self.swing < 1 or not 0 < self.hours < math.inf or not self.share > 0:
            raise PlanError(
                f"daily(share={self.share:g}, swing={self.swing:g}, hours={self.hours:g}): share and hours must be "
                "more than 0, and swing at least 1"
            )
        if self.hours > LONGEST and self.swing > 1:
            raise PlanError(
                f"daily(swing={self.swing:g}, hours={self.hours:g}): slots this long hide the difference of day and "
                f"night: use hours={LONGEST} or less, or swing=1"
            )
        if self.highest > 1:
            most = math.floor(100 * (self.swing + 1) / (2 * self.swing)) / 100
            raise PlanError(
                f"daily(share={self.share:g}, swing={self.swing:g}): at midnight {self.highest:.3g} of all clients "
                f"would be there, which is more than all: use share={most:g} or less"
            )

    @property
    def highest(self) -> float:
        """The share at midnight."""
        return 2 * self.share * self.swing / (self.swing + 1)

    def chance(self, at: float) -> float:
        """The share of clients that may take part at this time."""
        return self._chance(at, self.highest)

    def _chance(self, at: float, highest: float) -> float:
        lowest = highest / self.swing
        return lowest + (highest - lowest) * (1 + math.cos(2 * math.pi * at / DAY)) / 2

    def window(self, client: int, now: float, seed: int) -> Window | None:
        length = 3600 * self.hours
        shift = draw(seed, client, -1) * length
        first = math.floor((now + shift) / length)
        first += (first + 1) * length - shift <= now  # by rounding: a slot that is over

        own = _mixed(_mixed(0, seed), client)  # what all draws of a client have in common
        highest = self.highest

        def there(slot: int) -> bool:
            return (_mixed(own, slot) >> 11) / (1 << 53) < self._chance((slot + 0.5) * length - shift, highest)

        begin = next(filter(there, range(first, first + HORIZON)), None)
        if begin is None:
            return None
        end = begin + 1
        while end < begin + HORIZON and there(end):
            end += 1
        return begin * length - shift, end * length - shift


@dataclass(frozen=True, slots=True)
class AvailabilityTrace:
    """Windows that were recorded, by client; one without any never takes part."""

    windows: Mapping[int, Sequence[Window]] = field(default_factory=dict)  # in order, none touching another

    def window(self, client: int, now: float, seed: int) -> Window | None:
        there = self.windows.get(client, ())
        place = bisect_right([end for _, end in there], now)
        return there[place] if place < len(there) else None


def load_availability(path: str | os.PathLike[str]) -> AvailabilityTrace:
    """Read a file of lines `client,from,until`, such as `3,0s,2h`."""
    found: dict[int, list[Window]] = {}
    try:
        with Path(path).open(newline="", encoding="utf-8") as file:
            for number, row in enumerate(csv.reader(file), start=1):
                if row and not row[0].startswith("#") and row != ["client", "from", "until"]:
                    client, window = _window(row, f"{path}, line {number}")
                    found.setdefault(client, []).append(window)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise PlanError(f"cannot read the file of availability {path}: {error}") from None
    return AvailabilityTrace({client: _joined(windows) for client, windows in found.items()})


def _window(row: list[str], where: str) -> tuple[int, Window]:
    try:
        client, begin, end = row
        window = parse_duration(begin), parse_duration(end)
        if int(client) < 0 or not window[0] < window[1]:
            raise ValueError
    except (ValueError, PlanError):
        raise PlanError(f"{where}: write CLIENT,FROM,UNTIL, such as 3,0s,2h, with FROM before UNTIL") from None
    return int(client), window


def _joined(windows: list[Window]) -> list[Window]:
    """In order, with those that touch as one."""
    joined: list[Window] = []
    for begin, end in sorted(windows):
        if joined and begin <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((begin, end))
    return joined
