"""SLAQ (Zhang et al. 2017): workers go where they lower the loss most in the time until the next decision."""

from __future__ import annotations

import math
from collections.abc import Callable
from heapq import heapify, heappop, heappush

from covey.policy.sharing.allocation import Allocation, admitted, all_at_least
from covey.policy.sharing.greedy import Cost, greedy
from covey.policy.sharing.job_view import JobsView, JobView


def slaq(view: JobsView) -> Allocation:
    """The next worker goes to the job that gains most from it."""
    given, gains = _first_workers(view)
    most = {job.name: (job.most,) for job in view.jobs if job.name in given}
    grown = greedy(
        {name: _cost(gain) for name, gain in gains.items()},
        {name: (count,) for name, count in given.items()}, most, view.slots - sum(given.values()),
    )  # fmt: skip
    return Allocation({name: counts[0] for name, counts in grown.items()})


def slaq_maxmin(view: JobsView) -> Allocation:
    """The next worker goes to the job that will gain least of all, as long as it gains anything by it."""
    given, gains = _first_workers(view)
    left, most = view.slots - sum(given.values()), {job.name: job.most for job in view.jobs}
    growing = [(gain(given[name]), name) for name, gain in gains.items()] if left > 0 else []
    heapify(growing)
    while left > 0 and growing:
        now, name = heappop(growing)
        if given[name] < most[name] and (more := gains[name](given[name] + 1)) > now:
            given[name] += 1
            left -= 1
            heappush(growing, (more, name))
    return Allocation(given)


def gain_of(job: JobView, seconds: float) -> Callable[[int], float]:
    """By workers: how much the loss will fall in this time, as a share of the largest fall seen so far."""
    curve = job.loss_curve
    if curve is None:  # new jobs learn fast: as much as the most that was seen, in proportion to the workers
        return lambda workers: workers / max(job.most, workers)
    done, left = job.done, job.left
    now, most, largest = curve(done), math.inf if left is None else left, max(job.largest_fall, 1e-12)

    def gain(workers: int) -> float:
        fall = now - curve(done + min(job.speed(workers) * seconds, most))
        return fall / largest if fall > 0 else 0.0

    return gain


def _cost(gain: Callable[[int], float]) -> Cost:
    return lambda counts: -gain(counts[0])


def _first_workers(view: JobsView) -> tuple[dict[str, int], dict[str, Callable[[int], float]]]:
    """The smallest number for each job that fits, and what each gains.

    Who has not run for a slice yet goes on, as it was chosen for one. Then come those that gain most by it.
    """
    gains = {job.name: gain_of(job, view.slice) for job in view.jobs}

    def order(job: JobView) -> tuple[bool, float, float, str]:
        over = not job.workers or view.now - job.since >= view.slice
        return over, -gains[job.name](job.least) / job.least if over else 0.0, job.arrived, job.name

    given = all_at_least(view) or admitted(sorted(view.jobs, key=order), view.slots)
    return given, {name: gain for name, gain in gains.items() if name in given}
