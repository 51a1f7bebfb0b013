"""Where to cut: the best contiguous stages (PipeDream's planner, Narayanan et al. 2019), or why there are none."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from operator import add

from covey.errors import PlanError
from covey.parallelism.plan.profile import Profile
from covey.parallelism.plan.schedule import Schedule
from covey.parallelism.plan.search import LayerRun, search
from covey.parallelism.plan.terms import Cut, CutTerms, link_time, memories, stage_memory, stage_time
from covey.simulate.units import format_bytes, format_room


def best_cut(profile: Profile, terms: CutTerms) -> Cut:
    """The cut whose slowest stage or link is fastest, and of those the one with the least traffic.

    plain has one stage at work at a time, so there only traffic counts. Stages over the memory limit are out; if none
    are left the cut is refused. For interleaved, chunks are cut by time alone, and then held against the limit.
    """
    terms.check(len(profile))
    counts = [terms.hosts] if terms.stages is not None else range(1, terms.hosts + 1)
    found = [cut for machines in counts if (cut := _best(profile, terms, machines)) is not None]
    if not found:
        raise PlanError(_refusal(profile, terms))
    return min(found, key=lambda cut: (cut.slowest, sum(cut.machines)))


def equal_cut(profile: Profile, parts: int, machines: int | None = None) -> Cut:
    """As many layers and machines for each part, as far as cuts may come there: what one would do without measuring."""
    open_places = _open(profile)
    if len(open_places) < parts - 1:
        raise PlanError(_too_few(profile, parts))
    after: list[int] = []
    for number in range(1, parts):
        wished = round(number * len(profile) / parts) - 1
        free = [place for place in open_places if place > (after[-1] if after else -1)]
        after.append(min(free[: len(free) - (parts - 1 - number)], key=lambda place: abs(place - wished)))
    each, more = divmod(machines or parts, parts)
    return Cut(tuple(after), tuple(each + (number < more) for number in range(parts)))


def smallest_cut(profile: Profile, terms: CutTerms) -> Cut:
    """The cut whose largest stage needs the least memory, however slow it is."""
    terms.check(len(profile))

    def memory(run: LayerRun) -> float:
        able = not terms.trains or profile.trains(run.first, run.last)
        return _memory(profile, terms, run, terms.hosts) if able else math.inf

    least, chosen = search(profile, terms.parts, terms.hosts, memory, max)
    if least == math.inf:
        raise PlanError(_too_few(profile, terms.parts or 1))
    return Cut(tuple(run.last for run in chosen[:-1]), tuple(run.here for run in chosen))


def least_memory(profile: Profile, terms: CutTerms) -> float:
    """Bytes of the largest stage, in the cut where that is smallest (for interleaved: in the fastest cut)."""
    if terms.schedule.chunks > 1:
        return max(memories(profile, best_cut(profile, replace(terms, memory=math.inf)), terms.schedule))
    return search(profile, terms.parts, terms.hosts, lambda run: _memory(profile, terms, run, terms.hosts), max)[0]


def _best(profile: Profile, terms: CutTerms, machines: int) -> Cut | None:
    """First how fast the slowest can be, then the least traffic at that pace: in one pass the two would mix."""
    chunks, end = terms.schedule.chunks, len(profile) - 1

    def pace(run: LayerRun) -> float:
        if terms.trains and not profile.trains(run.first, run.last):
            return math.inf
        if chunks == 1 and terms.memory < math.inf and _memory(profile, terms, run, machines) > terms.memory:
            return math.inf
        link = link_time(profile, terms, run.last) if run.last < end else 0.0
        return max(stage_time(profile, terms, run.first, run.last, run.here), link)

    def traffic(run: LayerRun) -> float:
        layer = profile.layers[run.last]
        return layer.sends + layer.returns if pace(run) <= allowed else math.inf

    slowest, _ = search(profile, terms.parts, machines * chunks, pace, max)
    if slowest == math.inf:
        return None
    allowed = slowest if terms.schedule.traits.overlaps else math.nextafter(math.inf, 0)
    _, chosen = search(profile, terms.parts, machines * chunks, traffic, add)
    cut = Cut(tuple(run.last for run in chosen[:-1]), tuple(run.here for run in chosen), max(map(pace, chosen)))
    return cut if chunks == 1 or max(memories(profile, cut, terms.schedule)) <= terms.memory else None


def _memory(profile: Profile, terms: CutTerms, run: LayerRun, machines: int) -> float:
    return stage_memory(profile, terms, run.first, run.last, run.left, run.here, machines)


def _open(profile: Profile) -> list[int]:
    return [number for number, layer in enumerate(profile.layers[:-1]) if layer.cuttable]


def _too_few(profile: Profile, parts: int) -> str:
    what = f"the model can be cut in {len(_open(profile))} places, too few for {parts} parts"
    return f"{what}: ask for fewer stages{_or_tied(profile)}"


def _or_tied(profile: Profile) -> str:
    """What else to try where no cut may come between tied weights."""
    return ", or allow cuts between its tied weights: tied=sum adds up their gradients" if profile.tied else ""


def _refusal(profile: Profile, terms: CutTerms) -> str:
    """By how much the best cut misses the limit, and what would meet it."""
    if terms.parts is not None and len(_open(profile)) < terms.parts - 1:
        return _too_few(profile, terms.parts)
    if terms.trains and _best(profile, replace(terms, memory=math.inf), terms.hosts) is None:
        what = f"no cut into {terms.parts} parts leaves each something to train"
        return f"{what}: ask for fewer stages{_or_tied(profile)}"
    need = least_memory(profile, terms)
    what = f"{terms.stages} stages" if terms.stages is not None else f"{terms.machines} machines"
    ways = ", ".join([*_ways(profile, terms), f"{format_room(need)} of memory"])
    return (
        f"no cut into {what} fits in {format_bytes(terms.memory)} under {terms.schedule.name}: the largest stage needs "
        f"at least {format_room(need)}, {format_bytes(need - terms.memory)} more. What would do: {ways}"
    )


def _ways(profile: Profile, terms: CutTerms) -> Iterator[str]:
    """What else would fit, tried out."""
    plan = terms.schedule
    trials = [("recompute", replace(terms, schedule=replace(plan, recompute=True)))]
    if not plan.traits.lean:
        trials.append(("the timetable 1f1b", replace(terms, schedule=Schedule(microbatches=plan.microbatches))))
    yield from (words for words, trial in trials if least_memory(profile, trial) <= terms.memory)
    if terms.stages is not None and plan.chunks == 1:
        for stages in range(terms.stages + 1, min(2 * terms.stages + 2, len(_open(profile)) + 1) + 1):
            if least_memory(profile, replace(terms, stages=stages, machines=None)) <= terms.memory:
                yield f"{stages} stages"
                return
