"""Gandiva (Xiao et al. 2018): jobs take turns, share slots where that pays, and grow into idle ones."""

from __future__ import annotations

from collections.abc import Mapping

from covey.policy.sharing.allocation import Allocation, admitted, filled_evenly, in_turns
from covey.policy.sharing.job_view import JobsView, JobView, Pair


def gandiva(view: JobsView) -> Allocation:
    """Round robin in slices; two jobs of one size are packed into the same slots unless they were seen to lose by it.

    When nobody waits, jobs are alone, and grow.
    """
    order = in_turns(view)
    given = admitted(order, view.slots)
    waiting = [job for job in order if job.name not in given]
    if not waiting:
        return Allocation(filled_evenly(given, order, view.slots))
    pairs = packed([job for job in order if job.name in given], waiting, view.packings)
    sizes = {job.name: job.least for job in view.jobs}
    return Allocation(given | {name: sizes[name] for pair in pairs for name in pair}, pairs=frozenset(pairs))


def packed(running: list[JobView], waiting: list[JobView], packings: Mapping[Pair, float]) -> list[Pair]:
    """Whom to put beside whom: the best known pairs first, then those that nobody has tried; never one that lost."""
    found: list[Pair] = []
    free = {job.name: job for job in running if job.keepable}
    for guest in waiting:
        hosts = [
            (packings.get(pair, 1.0), name)
            for name, host in free.items()
            if host.least == guest.least and packings.get(pair := frozenset((name, guest.name)), 1.0) >= 1
        ]
        if hosts and guest.keepable:
            name = max(hosts)[1]
            found.append(frozenset((name, guest.name)))
            del free[name]
    return found
