"""How would a policy do? Jobs of a set in virtual time, under the same policy code that a head runs."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Iterable
from statistics import fmean

import msgspec

from covey.errors import PlanError
from covey.jobs.job_sets import JobSet, SetJob
from covey.jobs.simulated_job import ReplayedCurve, SimulatedJob
from covey.policy.sharing import POLICIES, SharingPolicy
from covey.policy.sharing.allocation import Allocation
from covey.policy.sharing.job_view import OFTEN, JobsView, Pair

FRICTION = 0.95  # of their speed is left to two jobs that are packed, beside what they take from each other
SOON = 1e-6  # seconds: who ends so soon has ended
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


class Rehearsal:
    """One policy and one set of jobs, in virtual time."""

    def __init__(self, jobs: JobSet, policy: SharingPolicy, times: RehearsalTimes) -> None:
        self.set, self.policy, self.times = jobs, policy, times
        self.now, self.busy, self.used = 0.0, 0.0, 0
        self.active: dict[str, SimulatedJob] = {}
        self.running: dict[str, SimulatedJob] = {}
        self.packings: dict[Pair, float] = {}
        self.ended: list[SimulatedJob] = []
        self.ends: dict[str, float] = {}
        self._finish: list[tuple[float, str, int]] = []  # a heap; a job that has changed since is passed over

    def run(self, name: str) -> PolicyTimes:
        """All jobs, from the first arrival to the last end."""
        curves = {curve.name: ReplayedCurve(curve) for curve in self.set.curves}
        coming = sorted(self.set.jobs, key=lambda job: (job.arrives, job.name), reverse=True)
        tick = 0.0
        while coming or self.active:
            times = [coming[-1].arrives] if coming else []
            times += [self._next_end(), tick] if self.active else []
            self._pass_time(min(times))
            while coming and coming[-1].arrives <= self.now:
                self._arrive(coming.pop(), curves)
            self._end_those_that_are_done()
            if self.active:
                self._apply(self.policy(self._view(self.active.values())))
                tick = self._view(self.running.values()).next_decision
        waits = [(job.first or 0.0) - job.arrived for job in self.ended]
        return PolicyTimes(
            policy=name, mean_completion=fmean(self.ends.values()), mean_wait=fmean(waits), makespan=self.now,
            busy=self.busy / (self.now * self.set.slots or 1), starts=sum(job.starts for job in self.ended),
            ends=self.ends,
        )  # fmt: skip

    def _arrive(self, asked: SetJob, curves: dict[str, ReplayedCurve]) -> None:
        chance = random.Random(f"{self.set.seed} {asked.name}")
        curve = curves[asked.curve]
        sizes = [workers for workers, _ in curve.table if workers <= asked.most] or [asked.most]
        guessed = {n: curve.speed(n) * math.exp(chance.gauss(0, self.times.error)) for n in sizes}
        self.active[asked.name] = SimulatedJob(asked, curve, guessed, self.now)

    def _view(self, jobs: Iterable[SimulatedJob]) -> JobsView:
        return JobsView(self.now, self.set.slots, tuple(jobs), self.times.slice, self.packings)

    def _next_end(self) -> float:
        while self._finish:
            at, name, serial = self._finish[0]
            job = self.running.get(name)
            if job is not None and job.serial == serial:
                return max(at, self.now)
            heapq.heappop(self._finish)
        return math.inf

    def _pass_time(self, until: float) -> None:
        self.busy += self.used * (until - self.now)
        self.now = until
        for job in self.running.values():
            job.advance(until)

    def _end_those_that_are_done(self) -> None:
        while self._next_end() <= self.now + SOON:
            name = heapq.heappop(self._finish)[1]
            self.ends[name] = self.now - self.active[name].arrived
            self.ended.append(self.active.pop(name))
            del self.running[name]
            for pair in self.ended[-1].pairs:
                self.packings.pop(pair, None)

    def _apply(self, decided: Allocation) -> None:
        self.used = decided.used
        assert self.used <= self.set.slots, f"{self.used} of {self.set.slots} slots were handed out"
        partners = {name: other for pair in decided.pairs for name, other in (tuple(pair), tuple(pair)[::-1])}
        for pair in decided.pairs - self.packings.keys():
            self._pack(pair)
        for job in [job for name, job in self.running.items() if not decided.workers.get(name)]:
            self._change(job, 0, "")
        for name, workers in decided.workers.items():
            job, partner = self.active[name], partners.get(name, "") if partners else ""
            if workers != job.workers or partner != job.partner:
                assert workers == 0 or job.least <= workers <= job.most, f"{name} cannot have {workers} workers"
                self._change(job, workers, partner)

    def _change(self, job: SimulatedJob, workers: int, partner: str) -> None:
        share = self._share(job, self.active[partner]) if partner else 1.0
        job.change(workers, partner, share, self.now, self.times.start)
        if not workers:
            del self.running[job.name]
            return
        self.running[job.name] = job
        heapq.heappush(self._finish, (job.ends, job.name, job.serial))

    def _pack(self, pair: Pair) -> None:
        """Measure what two jobs do together."""
        one, other = (self.active[name] for name in pair)
        self.packings[pair] = 2 * self._share(one, other)
        one.pairs.append(pair)
        other.pairs.append(pair)

    def _share(self, one: SimulatedJob, other: SimulatedJob) -> float:
        """The speed of each of two jobs on the same slots, as a share of that alone: they compute one after another."""
        return FRICTION * min(1.0, 1 / max(one.truth.compute + other.truth.compute, 1e-9))


def check_length(jobs: JobSet, times: RehearsalTimes) -> None:
    """Refuse a set with more slices than can be rehearsed, or with slices that are nothing beside its times."""
    curves = {curve.name: ReplayedCurve(curve) for curve in jobs.curves}
    alone, work = 0.0, 0.0  # seconds that a job takes at most, and all slots together
    for job in jobs.jobs:
        curve = curves[job.curve]
        slowest, dearest = curve.worst(job.least, min(job.most, jobs.slots))
        alone = max(alone, curve.samples[-1] * job.size * slowest)
        work += curve.samples[-1] * job.size * dearest
    longest = work / jobs.slots + alone
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
