"""What does a policy decide? How many workers each job has from now on, and which jobs share their slots."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace
from itertools import chain

from covey.policy.sharing.job_view import JobsView, JobView, Pair


@dataclass(frozen=True, slots=True)
class Allocation:
    """Workers by the names of jobs; those that are not named wait."""

    workers: Mapping[str, int]
    pairs: frozenset[Pair] = frozenset()

    @property
    def used(self) -> int:
        """The slots that are taken: of two jobs that share them, those of the larger one."""
        packed = {name for pair in self.pairs for name in pair}
        alone = sum(count for name, count in self.workers.items() if name not in packed)
        return alone + sum(max(self.workers.get(name, 0) for name in pair) for pair in self.pairs)


def admitted(order: Iterable[JobView], slots: int) -> dict[str, int]:
    """The smallest number of workers for each job that fits, in this order; who must go on running comes first.

    >>> admitted([JobView("a", 0, least=2, most=2), JobView("b", 0, least=3, most=3), JobView("c", 0)], 4)
    {'a': 2, 'c': 1}
    """
    given: dict[str, int] = {}
    left, jobs = slots, list(order)
    held = [job for job in jobs if not job.keepable and job.held]
    for job in chain(held, jobs):
        if left <= 0:
            break
        if job.least <= left and job.name not in given:
            given[job.name] = job.least
            left -= job.least
    return given


def all_at_least(view: JobsView) -> dict[str, int]:
    """The smallest number of workers for each job, if there are slots for all; else nothing."""
    given = {job.name: job.least for job in view.jobs}
    return given if sum(given.values()) <= view.slots else {}


def in_turns(view: JobsView) -> list[JobView]:
    """Round robin: who runs keeps its slots until its slice is over, then whoever has waited longest comes next."""

    def turn(job: JobView) -> tuple[int, float, float, str]:
        over = job.workers > 0 and view.now - job.since >= view.slice
        return (2 if over else 0 if job.workers else 1), job.since, job.arrived, job.name

    return sorted(view.jobs, key=turn)


def equal_shares(view: JobsView) -> dict[str, int]:
    """Equal shares of the slots; where there are more jobs than slots, they take turns."""
    given = all_at_least(view) or admitted(in_turns(view), view.slots)
    return filled_evenly(given, view.jobs, view.slots)


def filled_evenly(given: dict[str, int], jobs: Sequence[JobView], slots: int) -> dict[str, int]:
    """Hand out what is left, one worker at a time, always to the job that has fewest.

    >>> filled_evenly({"a": 1, "b": 1}, [JobView("a", 0, most=2), JobView("b", 0, most=8)], 8)
    {'a': 2, 'b': 6}
    """
    left = slots - sum(given.values())
    if left <= 0:
        return given
    growing = [
        (count, job.arrived, job.name, job.most) for job in jobs if (count := given.get(job.name, job.most)) < job.most
    ]
    heapify(growing)
    while left > 0 and growing:
        count, arrived, name, most = growing[0]
        given[name] = count + 1
        left -= 1
        if count + 1 < most:
            heapreplace(growing, (count + 1, arrived, name, most))
        else:
            heappop(growing)
    return given
