"""Do real strategies take as long as they are foreseen? Short runs of some correct what parts alone cannot tell.

What the parts of a step take is measured one by one, and then they share cores and links: a role that wakes up finds
the cores in use and its caches cold, and messages that meet on a link share it as TCP decides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import fmean, median

from covey.calibrate.fitting import ClusterCorrection, ClusterFit, Measure
from covey.errors import CoveyError
from covey.observe.step_time import WARM, recorded_step
from covey.run import fit
from covey.simulate import Bytes, Cluster, CpuTime, Link, Seconds
from covey.task import Task

SERVERS, WORKERS_ALONE = (
    ("bsp", "asynchronous", "easgd(period=4)"),
    ("allreduce", "local_sgd(period=4)", "dpsgd over ring"),
)
WORKERS = 2
PERIOD = 4  # steps between two exchanges, at most: runs have whole periods after a beginning that does not count
STEPS, FEWEST, LONGEST = 41, 13, 3.0  # of a run; of one with slow steps; seconds for all runs of a strategy, about
TELLING = 4  # strategies from which it is known how far off others are
LEAST = 0.05  # error: real runs of one strategy differ by as much
SPEED, LOAD, WINDOWS = 0.15, 0.3, 2.0  # how far off parts usually are: the standard deviation of a logarithm
LATE = 5e-4  # seconds that messages, and roles that wake up, usually wait besides
BEGINNINGS = (-2.5, 0.0, 1.5)  # windows from which the best is looked for: small changes of one may change nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class RehearsalTerms:
    """How much is run."""

    longest: float = LONGEST
    turns: int = 3  # runs of each strategy, of which the median counts
    enough: int = 3  # runs that were left alone, after which no more are made
    specs: tuple[str, ...] = (*SERVERS, *WORKERS_ALONE)


THOROUGH = RehearsalTerms()
# Where real steps of many strategies are measured afterwards: they also say how far off others are.
BRIEF = RehearsalTerms(longest=0.5, turns=2, enough=1, specs=(SERVERS[0], WORKERS_ALONE[0]))


@dataclass(slots=True)
class RealRuns:
    """Short runs of a strategy, and how long their steps took."""

    spec: str
    expected: float | None  # seconds of a step
    terms: RehearsalTerms
    found: list[float] = field(default_factory=list)
    turns: int = 0
    spent: float = 0.0  # seconds of training

    @property
    def over(self) -> bool:
        """Whether no more are made."""
        enough = len(self.found) >= self.terms.enough or self.turns >= self.terms.turns
        return enough or (bool(self.found) and self.spent >= self.terms.longest)

    def run(self, task: Task | str, engine: str, threads: int) -> None:
        """Once more; what other programs disturbed does not count, nor what cannot train this task."""
        steps = wholly(self.terms.longest / self.expected) if self.expected else FEWEST
        seed, self.turns = self.turns, self.turns + 1
        try:
            result = fit(
                task, self.spec, WORKERS, engine=engine, steps=steps, seed=seed, threads=threads, scores=0,
                traced=True, runs=False,
            )  # fmt: skip
        except CoveyError:
            self.turns = self.terms.turns
            return
        if result.stopped == "interrupted":
            raise KeyboardInterrupt
        self.spent += result.seconds
        quiet = result.contention is None or not result.contention.disturbed
        if quiet and result.recording and (step := recorded_step(result.recording)):
            self.found.append(step)


def rehearsed(
    cluster: Cluster, task: Task, named: Task | str, engine: str, threads: int, told: Callable[[str], None],
    terms: RehearsalTerms = THOROUGH,
) -> Cluster:  # fmt: skip
    """The cluster, corrected so that steps of some strategies take their real time, with how far off others are.

    Real runs get the task as it is `named`; those in virtual time need not read its data again. Strategies take turns:
    a machine that becomes slower meanwhile is slower for all of them.
    """
    every = [RealRuns(spec, foreseen(task, spec, cluster), terms) for spec in terms.specs]
    while going := [one for one in every if not one.over]:
        for one in going:
            told(f"measuring {one.spec}")
            one.run(named, engine, threads)
    real = {one.spec: median(one.found) for one in every if one.found}
    if not real:
        told("other programs disturbed all runs of strategies: nothing was corrected")
        return cluster
    told("fitting the cluster to the measured steps")
    return corrected(cluster, real, partial(foreseen, task))


def corrected(cluster: Cluster, real: Mapping[str, float], measure: Measure) -> Cluster:
    """The same from the real steps of each strategy, where `measure` foresees those on any cluster."""
    known = {spec: step for spec, step in real.items() if measure(spec, cluster)}
    if not known:
        return cluster
    found, apart = ClusterFit(cluster, corrections(cluster), known, measure).solved()
    return replace(found, error=_error(apart.values())) if len(known) >= TELLING else found


def _error(apart: Iterable[float]) -> float:
    return max(LEAST, math.sqrt(fmean(one * one for one in apart)))


def corrections(cluster: Cluster) -> list[ClusterCorrection]:
    """What can be wrong in a cluster as parts tell it."""
    usual = [ClusterCorrection(slowed), ClusterCorrection(loaded), ClusterCorrection(delayed, least=0.0)]
    if len(cluster.machines) == 1:
        return [*usual, ClusterCorrection(woken, least=0.0)]
    return [*usual, ClusterCorrection(widened, starts=BEGINNINGS)] if cluster.sharing == "tcp" else usual


def slowed(cluster: Cluster, size: float) -> Cluster:
    """With batches and optimizer steps that take longer: beside other work they find their caches cold."""
    factor, handling = math.exp(SPEED * size), cluster.handling
    return replace(
        cluster, compute=Seconds(factor * cluster.compute), update=Seconds(factor * cluster.update),
        handling=replace(handling, step=Seconds(factor * handling.step)),
    )  # fmt: skip


def loaded(cluster: Cluster, size: float) -> Cluster:
    """With messages and sums that cost the threads which drive roles more."""
    factor, handling = math.exp(LOAD * size), cluster.handling

    def more(toll: CpuTime) -> CpuTime:
        return CpuTime(each=Seconds(factor * toll.each), byte=Seconds(factor * toll.byte))

    dearer = replace(handling, send=more(handling.send), receive=more(handling.receive), sums=more(handling.sums))
    return replace(cluster, handling=dearer)


def woken(cluster: Cluster, size: float) -> Cluster:
    """With a longer wait for a core where all are in use."""
    return replace(
        cluster, machines=tuple(replace(one, wake=Seconds(one.wake + LATE * size)) for one in cluster.machines)
    )


def delayed(cluster: Cluster, size: float) -> Cluster:
    """With messages that take longer on their way, besides their bytes."""

    def late(link: Link) -> Link:
        return replace(link, latency=Seconds(link.latency + LATE * size))

    if len(cluster.machines) == 1:
        return replace(cluster, local=late(cluster.local)) if cluster.local else cluster
    return replace(cluster, link=late(cluster.link), links={host: late(link) for host, link in cluster.links.items()})


def widened(cluster: Cluster, size: float) -> Cluster:
    """With flows that begin with a larger window: those that share a link have more equal parts of it."""
    return replace(cluster, window=Bytes(max(1, round(cluster.window * math.exp(WINDOWS * size)))))


def wholly(steps: float) -> int:
    """About as many steps, in whole periods: in virtual time and for real they then have as many exchanges each."""
    begun = 1 + WARM
    return max(FEWEST, min(STEPS, begun + PERIOD * round((steps - begun) / PERIOD)))


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
