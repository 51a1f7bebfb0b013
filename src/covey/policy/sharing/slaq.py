"""SLAQ (Zhang et al. 2017): workers go where they lower the loss most in the time until the next decision."""

from __future__ import annotations

import itertools

from covey.policy.sharing.allocation import Allocation, admitted
from covey.policy.sharing.curve_fitting import slaq_curve
from covey.policy.sharing.greedy import Cost, greedy
from covey.policy.sharing.job_view import JobsView, JobView


def slaq(view: JobsView) -> Allocation:
    """The next worker goes to the job that gains most from it."""
    given, jobs = _first_workers(view)
    grown = greedy(
        {name: _cost(job, view.slice) for name, job in jobs.items()},
        {name: (count,) for name, count in given.items()}, {name: (job.most,) for name, job in jobs.items()},
        view.slots - sum(given.values()),
    )  # fmt: skip
    return Allocation({name: counts[0] for name, counts in grown.items()})


def slaq_maxmin(view: JobsView) -> Allocation:
    """The next worker goes to the job that will gain least of all, as long as it gains anything by it."""
    given, jobs = _first_workers(view)
    left, growing = view.slots - sum(given.values()), dict(jobs)
    while left > 0 and growing:
        name = min(growing, key=lambda name: (progress(jobs[name], given[name], view.slice), name))
        job, now = jobs[name], given[name]
        if now >= job.most or progress(job, now + 1, view.slice) <= progress(job, now, view.slice):
            del growing[name]
            continue
        given[name] += 1
        left -= 1
    return Allocation(given)


def progress(job: JobView, workers: int, seconds: float) -> float:
    """By how much the loss will fall in this time, as a share of the largest fall seen so far."""
    samples = job.speed(workers) * seconds
    if (left := job.left) is not None:
        samples = min(samples, left)
    curve = slaq_curve(job.curve)
    if curve is None:  # new jobs learn fast: as much as the most that was seen, in proportion to the workers
        return workers / max(job.most, workers)
    losses = [loss for _, loss in job.curve]
    largest = max((before - after for before, after in itertools.pairwise(losses)), default=0.0)
    return max(0.0, curve(job.done) - curve(job.done + samples)) / max(largest, 1e-12)


def _cost(job: JobView, seconds: float) -> Cost:
    return lambda counts: -progress(job, counts[0], seconds)


def _first_workers(view: JobsView) -> tuple[dict[str, int], dict[str, JobView]]:
    """The smallest number for each job that fits, those first that gain most by it."""

    def order(job: JobView) -> tuple[float, float, str]:
        return -progress(job, job.least, view.slice) / job.least, job.arrived, job.name

    given = admitted(sorted(view.jobs, key=order), view.slots)
    return given, {job.name: job for job in view.jobs if job.name in given}
