"""First come, first served; and equal shares for all."""

from __future__ import annotations

from collections.abc import Callable

from covey.policy.sharing.allocation import Allocation, admitted, filled_evenly, in_turns
from covey.policy.sharing.job_view import JobsView, JobView


def fifo(view: JobsView) -> Allocation:
    """In the order of arrival each job gets as many workers as it can use; nobody overtakes."""
    return in_order(view, lambda job: job.most)


def in_order(view: JobsView, wanted: Callable[[JobView], int]) -> Allocation:
    """In the order of arrival each job gets what it wants, or what is left if that is enough for it."""
    given = {job.name: job.least for job in view.jobs if job.held}
    for job in sorted(view.jobs, key=lambda job: (job.arrived, job.name)):
        room = view.slots - sum(given.values()) + given.get(job.name, 0)
        if job.least > room:
            break
        given[job.name] = min(job.clamped(wanted(job)), room)
    return Allocation(given)


def fair(view: JobsView) -> Allocation:
    """Equal shares; where there are more jobs than slots, they take turns."""
    order = in_turns(view)
    return Allocation(filled_evenly(admitted(order, view.slots), order, view.slots))
