"""Do real strategies take as long as they are foreseen? Short runs of some correct what parts alone cannot tell.

What the parts of a step take is measured one by one, and then they share cores and links: a role that wakes up finds
the cores in use, and a message waits for the thread that reads it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean

from covey.errors import CoveyError
from covey.observe.step_time import recorded_step
from covey.run import fit
from covey.simulate import Cluster, Link, Seconds
from covey.task import Task

WITH_SERVER, TO_WORKERS = "bsp", "allreduce"
CHECKED = ("asynchronous", "local_sgd(period=4)")  # whose steps say how far off others are
WORKERS = 2
STEPS, FEWEST, LONGEST = 40, 10, 4.0  # of a run; of one with slow steps; seconds that it should take at most
ROUNDS, HALVINGS = 2, 8  # of both corrections; of the range in which one is looked for
NEAR = 0.005  # of a step, which is no difference between runs
MOST, SHARE = 0.005, 0.1  # seconds of a correction, and of a step
LEAST = 0.05  # error: real runs of one strategy differ by as much


@dataclass(frozen=True, slots=True, kw_only=True)
class RehearsalTerms:
    """How much is run."""

    longest: float = LONGEST
    turns: int = 3  # runs of each strategy; the quickest counts, as other load of the machine only adds
    enough: int = 3  # runs that were left alone, after which no more are made
    checked: tuple[str, ...] = CHECKED


THOROUGH = RehearsalTerms()
# Where real steps of many strategies are measured afterwards: they also say how far off others are.
BRIEF = RehearsalTerms(longest=0.5, turns=2, enough=1, checked=())


Change = Callable[[Cluster, float], Cluster]
Measure = Callable[[str, Cluster], float | None]


def rehearsed(
    cluster: Cluster, task: Task, named: Task | str, engine: str, threads: int, told: Callable[[str], None],
    terms: RehearsalTerms = THOROUGH,
) -> Cluster:  # fmt: skip
    """The cluster, corrected so that steps of two strategies take their real time, with how far off others are.

    Real runs get the task as it is `named`; those in virtual time need not read its data again.
    """
    real: dict[str, float] = {}
    for spec in (WITH_SERVER, TO_WORKERS, *terms.checked):
        told(f"measuring {spec}")
        if step := real_step(named, spec, engine, threads, foreseen(task, spec, cluster), terms):
            real[spec] = step
    if not real:
        told("no run of a strategy was left alone by other programs: predictions are from parts only")
    return corrected(cluster, real, partial(foreseen, task))


def corrected(cluster: Cluster, real: dict[str, float], measure: Measure) -> Cluster:
    """The same from the real steps of each strategy, where `measure` foresees those on any cluster."""
    for _ in range(ROUNDS):
        if WITH_SERVER in real and len(cluster.machines) == 1:
            cluster = fitted(cluster, real[WITH_SERVER], partial(measure, WITH_SERVER), woken)
        if TO_WORKERS in real:
            cluster = fitted(cluster, real[TO_WORKERS], partial(measure, TO_WORKERS), delayed)
    if not real.keys() & set(CHECKED):  # what was fitted does not say how far off others are
        return cluster
    ratios = [math.log(step / there) for spec, step in real.items() if (there := measure(spec, cluster))]
    return replace(cluster, error=max(LEAST, math.sqrt(fmean(one * one for one in ratios)))) if ratios else cluster


def fitted(cluster: Cluster, real: float, step: Callable[[Cluster], float | None], change: Change) -> Cluster:
    """Changed by as much as makes a step take its real time, between nothing and the most that is sensible."""
    low, high = 0.0, max(MOST, SHARE * real)
    without = step(change(cluster, low))
    if without is None:
        return cluster
    if without >= real:
        return change(cluster, low)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        there = step(change(cluster, middle))
        if there is None:
            return cluster
        if abs(there / real - 1) < NEAR:
            return change(cluster, middle)
        low, high = (middle, high) if there < real else (low, middle)
    return change(cluster, low)


def woken(cluster: Cluster, seconds: float) -> Cluster:
    """With so long a wait for a core where all are in use."""
    return replace(cluster, machines=tuple(replace(one, wake=Seconds(seconds)) for one in cluster.machines))


def delayed(cluster: Cluster, seconds: float) -> Cluster:
    """With messages that take so long on their way, besides their bytes."""

    def late(link: Link) -> Link:
        return replace(link, latency=Seconds(seconds))

    if len(cluster.machines) == 1:
        return replace(cluster, local=late(cluster.local)) if cluster.local else cluster
    return replace(cluster, link=late(cluster.link), links={host: late(link) for host, link in cluster.links.items()})


def real_step(
    task: Task | str, spec: str, engine: str, threads: int, expected: float | None,
    terms: RehearsalTerms = THOROUGH,
) -> float | None:  # fmt: skip
    """Seconds of a real step; None where the strategy cannot train this task, or other programs used the cores."""
    steps = max(FEWEST, min(STEPS, round(terms.longest / expected))) if expected else FEWEST
    found = list[float]()
    for turn in range(terms.turns):
        if len(found) >= terms.enough:
            break
        try:
            result = fit(
                task, spec, WORKERS, engine=engine, steps=steps, seed=turn, threads=threads, scores=0, traced=True,
                runs=False,
            )  # fmt: skip
        except CoveyError:
            return None
        if result.stopped == "interrupted":
            raise KeyboardInterrupt
        quiet = result.contention is None or not result.contention.disturbed
        if quiet and result.recording and (step := recorded_step(result.recording)):
            found.append(step)
    return min(found, default=None)


def foreseen(task: Task, spec: str, cluster: Cluster) -> float | None:
    """Seconds of a step in virtual time."""
    try:
        result = fit(
            task, spec, WORKERS, engine="simulated", cluster=cluster, steps=STEPS, timing_only=True, traced=True,
            runs=False,
        )  # fmt: skip
    except CoveyError:
        return None
    return recorded_step(result.recording) if result.recording else None
