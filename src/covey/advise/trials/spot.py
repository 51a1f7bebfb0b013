"""Do spot machines pay? The price of those that depart against the time that their departures cost, by a trace."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from covey.advise.ranked import Advice, RankedStrategy, SpotAllocation, SpotOutcome
from covey.advise.situation import Situation
from covey.advise.trials.allocations import allocations
from covey.catalog import resolve
from covey.errors import CoveyError, PlanError
from covey.observe.result import Result
from covey.run import fit
from covey.simulate.spot_trace import SpotTrace, load_trace
from covey.task import Task

MOST = 3  # strategies that are tried
EFFECTS = 300_000  # of a run of one strategy at most, some seconds
LONGER = 1.25  # than the trace, where nobody knows how long a run takes


def weigh(
    advice: Advice, task: Task, now: Situation, file: Path, told: Callable[[str], None] = lambda _: None
) -> None:
    """Time the best whose workers may come and go with the trace and without it; the advice says what was found."""
    trace = load_trace(file)
    check(trace, now)
    able, steps_of = [one for one in advice.choices if one.workers > 1 and not one.missed], dict[str, int]()
    for choice in [one for one in able if resolve(one.spec, now.workers).ranges][:MOST]:
        told(f"timing {choice.spec} on machines that come and go")
        wanted, most = _steps(choice, trace), max(1, EFFECTS // (10 * now.workers))
        steps = steps_of[choice.spec] = min(wanted, most)
        fixed = _timed(task, now, choice.spec, now.workers, steps)
        try:
            spot = _timed(task, now, choice.spec, f"1:{now.workers}", steps, spot_trace=file)
        except CoveyError as error:
            found = SpotOutcome(spec=choice.spec, fixed_seconds=fixed.seconds, failure=str(error))
        else:
            found = _outcome(choice.spec, spot, fixed)
            found.departures = trace.departures(spot.seconds)
            found.simulated = spot.seconds if wanted > most else None
        advice.spot.append(found)
    advice.spot.sort(key=_order)
    for best in advice.spot[:1]:
        if best.money is not None and not _unknown(best):
            told(f"timing {best.spec} on some of these machines")
            whole = SpotAllocation(spot=sorted(trace.workers), seconds=best.seconds, money=best.money)
            others = allocations(task, now, best.spec, trace, steps_of[best.spec], best.seconds)
            best.allocations = sorted([*others, whole], key=lambda one: one.money)
    advice.findings[:0] = _findings(advice)


def check(trace: SpotTrace, now: Situation) -> None:
    """Refuse a trace of machines that the run does not have."""
    if max(trace.workers) >= now.workers:
        raise PlanError(
            f"the trace names worker {max(trace.workers)}, and {now.workers} workers are numbered 0 to "
            f"{now.workers - 1}: use --workers {max(trace.workers) + 1}"
        )


def _steps(choice: RankedStrategy, trace: SpotTrace) -> int:
    """Of each worker: to the target, where that is known; else until the trace is over."""
    seconds = choice.seconds or LONGER * trace.lines[-1].at
    return max(1, math.ceil(seconds / choice.step))


def _timed(task: Task, now: Situation, spec: str, workers: int | str, steps: int, **given: Any) -> Result:
    return fit(
        task, spec, workers, engine="simulated", cluster=now.world(spec), timing_only=True, steps=steps, runs=False,
        **given,
    )  # fmt: skip


def _outcome(spec: str, spot: Result, fixed: Result) -> SpotOutcome:
    counted = spot.goodput.ratio if spot.goodput else 1.0
    found = SpotOutcome(spec=spec, seconds=spot.seconds, fixed_seconds=fixed.seconds, counted=counted)
    if spot.cost and fixed.cost:
        found.money, found.fixed_money = spot.cost.money, fixed.cost.money
    return found


def _order(found: SpotOutcome) -> tuple[bool, float]:
    return bool(found.failure) or _unknown(found), found.seconds if found.money is None else found.money


def _unknown(found: SpotOutcome) -> bool:
    """Whether the simulation ended before anything had happened that it is about."""
    return found.simulated is not None and not found.departures


def _findings(advice: Advice) -> Iterator[str]:
    if not advice.spot:
        yield "None of the strategies above can go on while machines come and go: see --workers MIN:MAX."
    for found in advice.spot:
        if found.failure:
            yield f"On these spot machines {found.spec} cannot go on: {found.failure}."
            continue
        if found.simulated is not None:
            part = f"only the first {found.simulated:.3g} s of the trace were simulated"
            if _unknown(found):
                yield f"Of {found.spec} on these spot machines nothing can be said: {part}, in which none departs."
                continue
            yield f"Of {found.spec} on these spot machines {part}, with {found.departures} departures."
        longer = f"takes {found.seconds / found.fixed_seconds:.2f} times as long as on machines that stay"
        counts = f", and {found.counted:.1%} of its work counts"
        if found.money is None or found.fixed_money is None:
            yield f"On these spot machines {found.spec} {longer}{counts}; no cluster file gives prices."
            continue
        share = found.money / found.fixed_money if found.fixed_money else math.inf
        pays = "they pay" if share < 1 else "they do not pay"
        yield f"On these spot machines {found.spec} {longer}{counts}; it costs {share:.2f} times as much: {pays}."
        if len(found.allocations) > 1:
            yield _cheapest(found)


def _cheapest(found: SpotOutcome) -> str:
    """Which of the spot machines are worth their price."""
    best, rest, whole = found.allocations[0], found.allocations[1:], max(len(one.spot) for one in found.allocations)
    if len(best.spot) == whole:
        return f"It is cheapest with all {whole} spot machines: the next best costs {_times(rest[0], best)} these."
    which = f"with those of workers {', '.join(map(str, best.spot))} alone" if best.spot else "without spot machines"
    (full,) = (one for one in rest if len(one.spot) == whole)
    return f"It is cheapest {which}: it then costs {_times(best, full)} with all {whole}."


def _times(one: SpotAllocation, other: SpotAllocation) -> str:
    money = one.money / other.money if other.money else math.inf
    return f"{money:.2f} times as much, and takes {one.seconds / other.seconds:.2f} times as long, as"
