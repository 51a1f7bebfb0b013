"""How would a policy do? Jobs of a set in virtual time, under the same policy code that a head runs."""

from __future__ import annotations

import heapq
import math
import random
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from statistics import fmean

import msgspec

from covey.errors import PlanError
from covey.jobs.job_sets import JobCurve, JobSet, SetJob
from covey.policy.sharing import POLICIES, SharingPolicy
from covey.policy.sharing.allocation import Allocation
from covey.policy.sharing.job_view import OFTEN, JobsView, JobView, Pair

LIMIT = 2.0  # a job's limit of samples, in what it will need until it has converged
FRICTION = 0.95  # of their speed is left to two jobs that are packed, beside what they take from each other
SEEN = 24  # points of a curve that a policy is shown
MOST_SLICES = 10_000_000  # of all slots together: more would take hours


class RehearsalTimes(msgspec.Struct, kw_only=True, frozen=True):
    """What does not depend on a policy, in seconds; and how wrong predicted speeds are."""

    slice: float = 60.0  # between two decisions, and before others may have a job's slots
    start: float = 4.0  # until a job trains that was started or resumed
    error: float = 0.1  # sigma of the logarithm of a predicted speed over the true one


class PolicyTimes(msgspec.Struct, kw_only=True, frozen=True):
    """How a policy did."""

    policy: str
    mean_completion: float  # seconds from a job's arrival to its end
    mean_wait: float  # seconds from its arrival until it is started
    makespan: float  # seconds until all have ended
    busy: float  # the share of the slots that were taken
    starts: int  # of jobs, again and again where they are suspended
    ends: dict[str, float]  # seconds from its arrival, of each job


@dataclass(slots=True)
class _SimulatedJob:
    """A job, and the truth about it, of which a policy sees what it has done so far."""

    asked: SetJob
    curve: JobCurve
    guessed: dict[int, float]  # speeds, as they were predicted
    workers: int = 0
    partner: str = ""
    since: float = 0.0
    ready: float = 0.0  # when it trains, if it was started a short time ago
    done: float = 0.0
    first: float | None = None  # when it was started for the first time
    starts: int = 0
    rate: float = 0.0  # samples per second, now
    ends: float = math.inf  # when it has them all, at this rate
    seen: int = -1  # points of its curve that it has passed
    points: tuple[tuple[float, float], ...] = ()
    speeds: tuple[tuple[int, float], ...] = ()
    tried: set[int] = field(default_factory=set)
    waiting: JobView | None = None  # its view, which stays the same until it changes

    @property
    def total(self) -> float:
        return self.curve.samples[-1] * self.asked.size

    def view(self) -> JobView:
        if self.waiting is None or self.workers:
            self.waiting = self._view()
        return self.waiting

    def _view(self) -> JobView:
        passed = bisect_right(self.curve.samples, self.done / self.asked.size)
        if passed != self.seen:
            every = max(1, math.ceil(passed / SEEN))
            chosen, curve = range(passed - 1, -1, -every), self.curve
            self.points = tuple((curve.samples[i] * self.asked.size, curve.losses[i]) for i in reversed(chosen))
            self.seen = passed
        asked = self.asked
        return JobView(
            asked.name, asked.arrives, asked.least, asked.most, self.workers, self.since, self.done,
            self.total if asked.known else LIMIT * self.total, not asked.known, self.points, self.speeds,
        )  # fmt: skip

    def measured(self) -> None:
        """What was tried is known; the rest is predicted."""
        if self.workers not in self.tried or not self.speeds:
            self.tried |= {self.workers} - {0}
            known = self.guessed | {workers: self.curve.speed(workers) for workers in self.tried}
            self.speeds = tuple(sorted(known.items()))


class Rehearsal:
    """One policy and one set of jobs, in virtual time."""

    def __init__(self, jobs: JobSet, policy: SharingPolicy, times: RehearsalTimes) -> None:
        self.set, self.policy, self.times = jobs, policy, times
        self.now, self.busy = 0.0, 0.0
        self.active: dict[str, _SimulatedJob] = {}
        self.pairs: frozenset[Pair] = frozenset()
        self.packings: dict[Pair, float] = {}
        self.ended: list[_SimulatedJob] = []
        self.ends: dict[str, float] = {}
        self._finish: list[tuple[float, int, str]] = []  # a heap; a job that has changed since is passed over
        self._serial: dict[str, int] = {}

    def run(self, name: str) -> PolicyTimes:
        """All jobs, from the first arrival to the last end."""
        curves = {curve.name: curve for curve in self.set.curves}
        coming = sorted(self.set.jobs, key=lambda job: (job.arrives, job.name), reverse=True)
        tick = 0.0
        while coming or self.active:
            times = [coming[-1].arrives] if coming else []
            times += [self._next_end()] if self.active else []
            times += [tick] if self.active else []
            self._pass_time(min(times))
            while coming and coming[-1].arrives <= self.now:
                self._arrive(coming.pop(), curves)
            self._end_those_that_are_done()
            if self.active:
                self._apply(self.policy(self._view(self.active.values())))
                tick = self._view(job for job in self.active.values() if job.workers).next_decision
        waits = [(job.first or 0.0) - job.asked.arrives for job in self.ended]
        return PolicyTimes(
            policy=name, mean_completion=fmean(self.ends.values()), mean_wait=fmean(waits), makespan=self.now,
            busy=self.busy / (self.now * self.set.slots or 1), starts=sum(job.starts for job in self.ended),
            ends=self.ends,
        )  # fmt: skip

    def _arrive(self, asked: SetJob, curves: dict[str, JobCurve]) -> None:
        chance = random.Random(f"{self.set.seed} {asked.name}")
        curve = curves[asked.curve]
        sizes = [workers for workers, _ in curve.table if workers <= asked.most] or [asked.most]
        guessed = {n: curve.speed(n) * math.exp(chance.gauss(0, self.times.error)) for n in sizes}
        job = _SimulatedJob(asked, curve, guessed, since=self.now)
        job.measured()
        self.active[asked.name] = job

    def _view(self, jobs: Iterable[_SimulatedJob]) -> JobsView:
        views = tuple(job.view() for job in jobs)
        return JobsView(self.now, self.set.slots, views, self.times.slice, self.packings)

    def _next_end(self) -> float:
        while self._finish:
            at, serial, name = self._finish[0]
            if self._serial.get(name) == serial and name in self.active:
                return max(at, self.now)
            heapq.heappop(self._finish)
        return math.inf

    def _pass_time(self, until: float) -> None:
        for job in self.active.values():
            if job.workers:
                job.done += job.rate * max(0.0, until - max(self.now, job.ready))
        used = Allocation({name: job.workers for name, job in self.active.items()}, self.pairs).used
        self.busy += used * (until - self.now)
        self.now = until

    def _end_those_that_are_done(self) -> None:
        for name, job in list(self.active.items()):
            few = job.total - job.done <= max(1e-9 * job.total, 1e-6 * job.rate)
            if job.workers and (few or job.ends <= self.now):  # late in time, a float's step is longer than few takes
                self.ends[name] = self.now - job.asked.arrives
                self.ended.append(job)
                self.pairs = frozenset(pair for pair in self.pairs if name not in pair)
                del self.active[name]

    def _apply(self, decided: Allocation) -> None:
        assert decided.used <= self.set.slots, f"{decided.used} of {self.set.slots} slots were handed out"
        partners = {name: other for pair in decided.pairs for name, other in (tuple(pair), tuple(pair)[::-1])}
        self.pairs = decided.pairs
        for pair in decided.pairs - self.packings.keys():
            self.packings[pair] = sum(self._packed(*map(self.active.__getitem__, pair)))
        for name, job in self.active.items():
            workers, partner = decided.workers.get(name, 0), partners.get(name, "")
            assert workers == 0 or job.asked.least <= workers <= job.asked.most, f"{name} cannot have {workers} workers"
            if (workers, partner) != (job.workers, job.partner):
                self._change(job, workers, partner)

    def _change(self, job: _SimulatedJob, workers: int, partner: str) -> None:
        if (workers > 0) != (job.workers > 0):
            job.since = self.now
        if workers and not job.workers:
            job.since = job.ready = self.now + self.times.start
            job.starts += 1
            job.first = self.now if job.first is None else job.first
        job.workers, job.partner, job.waiting = workers, partner, None
        job.measured()
        share = self._packed(job, self.active[partner])[0] if partner else 1.0
        job.rate = job.curve.speed(workers) * share if workers else 0.0
        self._serial[job.asked.name] = serial = self._serial.get(job.asked.name, 0) + 1
        job.ends = math.inf
        if job.rate:
            job.ends = max(self.now, job.ready) + (job.total - job.done) / job.rate
            heapq.heappush(self._finish, (job.ends, serial, job.asked.name))

    def _packed(self, one: _SimulatedJob, other: _SimulatedJob) -> tuple[float, float]:
        """The speeds of two jobs on the same slots, as shares of those alone: they compute one after the other."""
        share = FRICTION * min(1.0, 1 / max(one.curve.compute + other.curve.compute, 1e-9))
        return share, share


def check_length(jobs: JobSet, times: RehearsalTimes) -> None:
    """Refuse a set with more slices than can be rehearsed, or with slices that are nothing beside its times."""
    curves = {curve.name: curve for curve in jobs.curves}
    alone = [curves[job.curve].samples[-1] * job.size / curves[job.curve].speed(job.least) for job in jobs.jobs]
    work = sum(seconds * job.least for seconds, job in zip(alone, jobs.jobs, strict=True))
    longest = work / jobs.slots + max(alone)
    slices = longest / times.slice * min(jobs.slots, sum(job.most for job in jobs.jobs))
    if not slices <= MOST_SLICES:
        raise PlanError(
            f"these jobs take about {longest:.2g} s, {slices:.2g} slices of all slots; at most {MOST_SLICES} are "
            f"rehearsed: choose a --slice above {times.slice:g}s, or smaller jobs"
        )
    end = max(job.arrives for job in jobs.jobs) + 2 * longest
    if times.slice / OFTEN < 8 * math.ulp(end):
        raise PlanError(f"a --slice of {times.slice:g}s is too short beside {end:.2g} s, when the last job ends")


def rehearse(
    jobs: JobSet, policies: Iterable[str] = tuple(POLICIES), times: RehearsalTimes | None = None,
    told: Callable[[str], None] = lambda line: None,
) -> list[PolicyTimes]:  # fmt: skip
    """How each policy does with these jobs, the one with the shortest mean completion first."""
    check_length(jobs, times or RehearsalTimes())
    found = []
    for name in policies:
        found.append(Rehearsal(jobs, POLICIES[name], times or RehearsalTimes()).run(name))
        told(f"{name}: mean completion {found[-1].mean_completion:.0f} s")
    return sorted(found, key=lambda one: (one.mean_completion, one.policy))
