"""First come, first served; and equal shares for all."""

from __future__ import annotations

from collections.abc import Callable

from covey.policy.sharing.allocation import Allocation, equal_shares
from covey.policy.sharing.job_view import JobsView, JobView


def fifo(view: JobsView) -> Allocation:
    """In the order of arrival each job gets as many workers as it can use; nobody overtakes."""
    return in_order(view, lambda job: job.most)


def in_order(view: JobsView, wanted: Callable[[JobView], int]) -> Allocation:
    """In the order of arrival each job gets what it wants, or what is left if that is enough for it."""
    given = {job.name: job.least for job in view.jobs if not job.keepable and job.held}
    left = view.slots - sum(given.values())
    for job in sorted(view.jobs, key=lambda job: (job.arrived, job.name)):
        room = left + given.get(job.name, 0)
        if job.least > room:
            break
        given[job.name] = min(job.clamped(wanted(job)), room)
        left = room - given[job.name]
    return Allocation(given)


def fair(view: JobsView) -> Allocation:
    """Equal shares; where there are more jobs than slots, they take turns."""
    return Allocation(equal_shares(view))
