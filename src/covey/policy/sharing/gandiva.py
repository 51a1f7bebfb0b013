"""Gandiva (Xiao et al. 2018): jobs take turns, share slots where that pays, and grow into idle ones."""

from __future__ import annotations

from collections.abc import Mapping

from covey.policy.sharing.allocation import Allocation, admitted, all_at_least, filled_evenly, in_turns
from covey.policy.sharing.job_view import JobsView, JobView, Pair


def gandiva(view: JobsView) -> Allocation:
    """Round robin in slices; two jobs of one size are packed into the same slots unless they were seen to lose by it.

    When nobody waits, jobs are alone, and grow.
    """
    if given := all_at_least(view):
        return Allocation(filled_evenly(given, view.jobs, view.slots))
    order = in_turns(view)
    given = admitted(order, view.slots)
    waiting = [job for job in order if job.name not in given]
    pairs = packed([job for job in order if job.name in given], waiting, view.packings)
    sizes = {job.name: job.least for job in view.jobs}
    return Allocation(given | {name: sizes[name] for pair in pairs for name in pair}, pairs=frozenset(pairs))


def packed(running: list[JobView], waiting: list[JobView], packings: Mapping[Pair, float]) -> list[Pair]:
    """Whom to put beside whom: the best known pairs first, then those that nobody has tried; never one that lost."""
    found: list[Pair] = []
    free: dict[int, dict[str, None]] = {}  # names by size, in order
    for job in sorted(running, key=lambda job: job.name, reverse=True):
        if job.keepable:
            free.setdefault(job.least, {})[job.name] = None
    tried: dict[str, dict[str, float]] = {}
    for (one, other), together in ((tuple(pair), together) for pair, together in packings.items()):
        tried.setdefault(one, {})[other] = tried.setdefault(other, {})[one] = together
    for guest in waiting:
        hosts = free.get(guest.least)
        if hosts and guest.keepable and (name := _host(hosts, tried.get(guest.name, {}))):
            found.append(frozenset((name, guest.name)))
            del hosts[name]
    return found


def _host(hosts: Mapping[str, None], tried: Mapping[str, float]) -> str:
    """The host that gains most, or an empty name; one that was not tried counts as neither gain nor loss."""
    untried = next((name for name in hosts if tried.get(name, 1.0) == 1.0), "")
    known = max(((together, name) for name, together in tried.items() if together > 1 and name in hosts), default=None)
    return known[1] if known else untried
