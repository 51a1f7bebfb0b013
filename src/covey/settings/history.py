"""Settings over the steps of a run: one worker's, and whether all workers' are the same."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from covey.errors import PlanError
from covey.message import Address
from covey.settings.values import Settings

CHANGES, BEHIND = 256, 8  # of a worker that are kept, and of those before the one in use
STRETCHES = 4096  # that are compared


class SettingsChange(NamedTuple):
    """The settings from a step on."""

    step: int
    settings: Settings


class History:
    """The settings of one worker, as they changed from step to step."""

    def __init__(self, changes: Iterable[SettingsChange] = ()) -> None:
        self.changes = list(changes)

    @property
    def last(self) -> SettingsChange | None:
        return self.changes[-1] if self.changes else None

    def add(self, step: int, settings: Settings) -> None:
        if self.changes and self.changes[-1].step >= step:  # told anew after a restart
            self.changes = [change for change in self.changes if change.step < step]
        self.changes = [*self.changes[1 - CHANGES :], SettingsChange(step, settings)]

    def at(self, step: int) -> Settings | None:
        """Those of a step; what is long past is forgotten, as gradients of a worker are stepped on in order."""
        place = bisect_right(self.changes, step, key=lambda change: change.step) - 1
        if place > BEHIND:
            self.changes = self.changes[place - BEHIND :]
            place = BEHIND
        return self.changes[place].settings if place >= 0 else None


class SettingsStretch(NamedTuple):
    """Who first had these settings in the steps from `first` on; None: nobody has told them."""

    first: int
    settings: Settings | None
    who: Address


class Agreement:
    """Whether all workers take the same steps with the same settings, as far as they have told."""

    def __init__(self) -> None:
        self.line: list[SettingsStretch] = []
        self.end = 0  # of what is known

    def add(self, who: Address, first: int, last: int, settings: Settings) -> None:
        """A worker takes the steps from `first` up to, but not including, `last` with these settings."""
        if first < self.end:
            self._settle(who, first, min(last, self.end), settings)
        if last <= self.end:
            return
        if first > self.end:
            self.line.append(SettingsStretch(self.end, None, who))
        if not self.line or self.line[-1].settings != settings:
            self.line.append(SettingsStretch(max(first, self.end), settings, who))
        self.end = last
        if len(self.line) > STRETCHES:
            del self.line[: STRETCHES // 2]

    def _settle(self, who: Address, first: int, last: int, settings: Settings) -> None:
        """Compare these steps with what others have told of them; where nobody has, this is what is known."""
        place = max(0, bisect_right(self.line, first, key=lambda stretch: stretch.first) - 1)
        while place < len(self.line) and self.line[place].first < last:
            stretch = self.line[place]
            if stretch.settings is None:
                place += self._fill(place, SettingsStretch(max(first, stretch.first), settings, who), last)
            elif stretch.settings != settings:
                step = max(first, stretch.first)
                raise PlanError(disagreement(step, (stretch.who, stretch.settings), (who, settings)))
            else:
                place += 1

    def _fill(self, place: int, told: SettingsStretch, last: int) -> int:
        """Put in what was told of a gap, up to `last`; how many stretches there are now in its place."""
        gap, begin = self.line[place], told.first
        end = self.line[place + 1].first if place + 1 < len(self.line) else self.end
        longer = begin == gap.first and place > 0 and self.line[place - 1].settings == told.settings
        before = [gap] if gap.first < begin else []
        after = [gap._replace(first=last)] if last < end else []
        self.line[place : place + 1] = [*before, *([] if longer else [told]), *after]
        return len(before) + (not longer) + len(after)


def disagreement(step: int, one: tuple[Address, Settings], other: tuple[Address, Settings]) -> str:
    """In what the settings of two workers differ, and what to do."""
    return (
        f"the optimizers' settings differ between workers at step {step}: {_difference(one, other)}. All workers must "
        "take a step with the same settings: compute them from values that are the same on all workers; make a local "
        'value, such as a validation loss, common with member.agree(value, how="mean")'
    )


def _difference(one: tuple[Address, Settings], other: tuple[Address, Settings]) -> str:
    (first, mine), (second, theirs) = one, other
    if len(mine.groups) != len(theirs.groups):
        return f"{first} has {len(mine.groups)} parameter groups, and {second} has {len(theirs.groups)}"
    for number, (here, there) in enumerate(zip(mine.groups, theirs.groups, strict=True)):
        for key in sorted(here.keys() | there.keys()):
            if here.get(key) != there.get(key):
                values = f"{here.get(key)!r} on {first} and {there.get(key)!r} on {second}"
                return f"{key} of parameter group {number} is {values}"
    if mine.clip != theirs.clip:
        return f"{first} clips to {mine.clip}, and {second} to {theirs.clip}"
    if lacking := set(mine.absent) ^ set(theirs.absent):
        place = min(lacking)
        has, lacks = (second, first) if place in mine.absent else (first, second)
        return (
            f"parameter {place} of the model has a gradient on {has} and none on {lacks}, under a strategy whose "
            "workers step by themselves: add 0 * sum(p.sum() for p in model.parameters()) to the loss, or use bsp"
        )
    return f"{first} steps the optimizers {list(mine.active)}, and {second} {list(theirs.active)}"
