"""The least price of all contiguous cuts, by dynamic programming."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

from covey.parallelism.plan.profile import Profile


@dataclass(frozen=True, slots=True)
class LayerRun:
    """A run of layers as one stage of a cut."""

    first: int
    last: int
    left: int  # machines from this stage on
    here: int  # machines of this stage


def search(
    profile: Profile, parts: int | None, machines: int,
    price: Callable[[LayerRun], float], join: Callable[[float, float], float],
) -> tuple[float, list[LayerRun]]:  # fmt: skip
    """The cheapest cut into `parts` (None: any number) for `machines`, and its price: infinite if there is none.

    It goes from the back, so that a stage knows how many machines come after it, on which its memory depends.
    """

    @cache
    def best(first: int, parts: int | None, left: int) -> tuple[float, LayerRun | None]:
        found: tuple[float, LayerRun | None] = (math.inf, None)
        for run in _choices(profile, first, parts, left):
            cost = price(run)
            if cost < found[0] and run.last < len(profile) - 1:
                cost = join(cost, best(run.last + 1, _less(parts), left - run.here)[0])
            if cost < found[0]:
                found = (cost, run)
        return found

    value, run = best(0, parts, machines)
    chosen: list[LayerRun] = []
    while run is not None:
        chosen.append(run)
        parts, machines = _less(parts), machines - run.here
        run = best(run.last + 1, parts, machines)[1] if run.last < len(profile) - 1 else None
    return value, chosen


def _less(parts: int | None) -> int | None:
    return None if parts is None else parts - 1


def _choices(profile: Profile, first: int, parts: int | None, left: int) -> Iterator[LayerRun]:
    """What the next stage may be."""
    end = len(profile) - 1
    if parts is None or parts == 1:
        yield LayerRun(first, end, left, left)
    after = 1 if parts is None else parts - 1
    if after == 0 or left == 1:
        return
    for last in range(first, end - after + 1):
        if profile.layers[last].cuttable:
            yield from (LayerRun(first, last, left, here) for here in range(1, left - after + 1))
