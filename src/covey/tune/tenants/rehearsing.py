"""Whose model next? Recorded trials of several tasks in virtual time: ease.ml beside turns, and beside a queue."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from random import Random
from statistics import fmean

import msgspec

from covey.decoding import WireFormat
from covey.engines import machine
from covey.errors import PlanError, WireError
from covey.policy.easeml import EaseMl
from covey.policy.search import WORST
from covey.tune.outcomes import TrialRow
from covey.tune.space import Space
from covey.tune.space_reader import parse_space
from covey.tune.tenants.candidates import MOST
from covey.tune.tenants.model_choice import ModelChoice, TenantTrials
from covey.tune.tenants.searching import SCHEMA, TenantsResult

NEAR = 0.002  # of a task's best score: as good
HEAD = 200  # bytes of a file, in which it says what it is
LONGEST = 1e12  # seconds of a trial
ORDERS = 10  # of the trials, where a rule takes them as they come

Next = Callable[[], tuple[int, int] | None]
Ended = Callable[[int, int, float, float], None]
Order = Callable[[Sequence[Sequence[TrialRow]], Random], Iterator[tuple[int, int]]]

results: WireFormat[TenantsResult] = WireFormat("search of several tasks", TenantsResult, "json")


class TenantsRehearsal(msgspec.Struct, kw_only=True):
    """The mean seconds after which a task has its best model, under each rule."""

    schema: str = "covey.tenants_rehearsal/1"
    slots: int
    seconds: dict[str, float] = {}
    best: str = ""
    verdict: str = ""

    def to_json(self) -> str:
        return msgspec.json.format(msgspec.json.encode(self), indent=1).decode() + "\n"


def is_of_tenants(place: Path) -> bool:
    """Whether a file has a search of several tasks."""
    if not place.is_file():
        return False
    with place.open("rb") as file:
        return SCHEMA.encode() in file.read(HEAD)


def tenants_rehearsal_of(place: Path, slots: int | None) -> TenantsRehearsal:
    """Rehearse the search of several tasks that a file of `--json` holds."""
    try:
        whole = results.read_file(place)
    except WireError as error:
        raise PlanError(f"{place} is no search that covey tune wrote: {error}") from None
    return rehearsed_tenants(whole, slots or machine.cores())


def rehearsed_tenants(whole: TenantsResult, slots: int) -> TenantsRehearsal:
    """Every rule with the trials of a search."""
    rows = [[row for row in one.trials if row.status in ("finished", "failed")] for one in whole.tenants]
    if not rows:
        raise PlanError("this search has no task: record one with covey tune a.py b.py --policy easeml --json FILE")
    if not all(any(row.best(whole.better) > WORST for row in some) for some in rows):
        raise PlanError("a task of this search has no trial that was scored to its end: record it with more --trials")
    spaces = [parse_space(one.space) for one in whole.tenants]
    for one, space, some in zip(whole.tenants, spaces, rows, strict=True):
        _check(one.task, space, some)

    def by_easeml() -> tuple[Next, Ended]:
        tenants = [TenantTrials(space, [row.point for row in some]) for space, some in zip(spaces, rows, strict=True)]
        choice = ModelChoice(tenants, EaseMl())
        return choice.next, choice.ended

    def mean(rule: Callable[[], tuple[Next, Ended]]) -> float:
        return fmean(_replayed(rows, whole, slots, *rule()))

    found = TenantsRehearsal(slots=slots, seconds={"easeml": mean(by_easeml)})
    for name, order in (("turns", _turns), ("queue", _queue)):
        found.seconds[name] = fmean(mean(partial(_fixed, order, rows, Random(seed))) for seed in range(ORDERS))
    found.best = min(found.seconds, key=found.seconds.__getitem__)
    found.verdict = (
        f"{found.best} is the best for these tasks: each has its best model after {found.seconds[found.best]:.3g} s on "
        "average"
    )
    return found


def _check(task: str, space: Space, rows: Sequence[TrialRow]) -> None:
    """Refuse trials that no search can have had."""
    ranges = dict(space.ranges())
    if len(rows) > MOST:
        raise PlanError(f"{task} has {len(rows)} trials; at most {MOST} of a task are rehearsed")
    for row in rows:
        if not 0 <= row.seconds <= LONGEST:
            raise PlanError(f"trial {row.number} of {task} took {row.seconds:g} s: seconds are 0 to {LONGEST:g}")
        for path in row.point.keys() & ranges.keys():
            value, among = row.point[path], ranges[path]
            if isinstance(value, str) or not among.low <= value <= among.high:
                raise PlanError(f"trial {row.number} of {task} has {path}={value!r}, which is not in {among}")


def _fixed(order: Order, rows: Sequence[Sequence[TrialRow]], chance: Random) -> tuple[Next, Ended]:
    coming = order(rows, chance)
    return lambda: next(coming, None), lambda *_: None


def _queue(rows: Sequence[Sequence[TrialRow]], chance: Random) -> Iterator[tuple[int, int]]:
    """All trials of the first task, then those of the next."""
    for number, some in enumerate(rows):
        yield from ((number, model) for model in chance.sample(range(len(some)), len(some)))


def _turns(rows: Sequence[Sequence[TrialRow]], chance: Random) -> Iterator[tuple[int, int]]:
    """One trial of each task in turn."""
    left = [chance.sample(range(len(some)), len(some)) for some in rows]
    while any(left):
        yield from ((number, some.pop()) for number, some in enumerate(left) if some)


def _replayed(
    rows: Sequence[Sequence[TrialRow]], whole: TenantsResult, slots: int, choose: Next, ended: Ended
) -> list[float]:
    """When each task had a model as good as its best."""
    tops = [max(row.best(whole.better) for row in some) for some in rows]
    found: dict[int, float] = {}
    due: list[tuple[float, int, int]] = []
    now = 0.0
    while True:
        while len(due) < slots and (chosen := choose()) is not None:
            heapq.heappush(due, (now + rows[chosen[0]][chosen[1]].seconds, *chosen))
        if not due:
            return [found[number] for number in range(len(rows))]
        now, number, model = heapq.heappop(due)
        row, score = rows[number][model], rows[number][model].best(whole.better)
        if score >= tops[number] - abs(tops[number]) * NEAR:
            found.setdefault(number, now)
        ended(number, model, score, row.seconds)
