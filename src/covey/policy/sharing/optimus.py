"""Optimus (Peng et al. 2018): predict when each job ends, and give workers to those whose end they bring nearest."""

from __future__ import annotations

from statistics import median

from covey.policy.sharing.allocation import Allocation, admitted, all_at_least
from covey.policy.sharing.greedy import Cost, Counts, greedy
from covey.policy.sharing.job_view import JobsView, JobView


def optimus(view: JobsView) -> Allocation:
    """One worker more at a time for the job whose predicted time it shortens most.

    The paper starts every job. Where there are more jobs than slots, those with the shortest predicted time come first.
    """
    left, usual = samples_left(view), 1.0 if all(job.speeds for job in view.jobs) else usual_speed(view)
    times = {job.name: _time(job, left[job.name], usual) for job in view.jobs}
    if not (given := all_at_least(view)):
        order = sorted(view.jobs, key=lambda job: (times[job.name]((job.least,)), job.arrived, job.name))
        given = admitted(order, view.slots)
    jobs = {job.name: job for job in view.jobs if job.name in given}
    grown = greedy(
        times, {name: (count,) for name, count in given.items()}, {name: (job.most,) for name, job in jobs.items()},
        view.slots - sum(given.values()),
    )  # fmt: skip
    return Allocation({name: counts[0] for name, counts in grown.items()})


def samples_left(view: JobsView) -> dict[str, float]:
    """Of each job; where that cannot be known, what is usual here."""
    known = {job.name: job.left for job in view.jobs}
    usual = median([left for left in known.values() if left is not None] or [1.0])
    return {name: usual if left is None else left for name, left in known.items()}


def usual_speed(view: JobsView) -> float:
    """Samples per second of one worker of a job that was measured; for those of which nothing is known."""
    return median([job.speed(1) for job in view.jobs if job.speeds] or [1.0])


def _time(job: JobView, left: float, usual: float) -> Cost:
    def seconds(counts: Counts) -> float:
        speed = job.speed(counts[0]) if job.speeds else usual * counts[0]
        return left / max(speed, 1e-12)

    return seconds
