"""What does a policy decide? How many workers each job has from now on, and which jobs share their slots."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from covey.policy.sharing.job_view import JobsView, JobView, Pair


@dataclass(frozen=True, slots=True)
class Allocation:
    """Workers by the names of jobs; those that are not named wait."""

    workers: Mapping[str, int]
    pairs: frozenset[Pair] = frozenset()
    servers: Mapping[str, int] = field(default_factory=dict)  # for jobs that start now, where a policy has a wish

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
    left = slots
    for job in sorted(order, key=lambda job: not job.held):
        if job.least <= left:
            given[job.name] = job.least
            left -= job.least
    return given


def in_turns(view: JobsView) -> list[JobView]:
    """Round robin: who runs keeps its slots until its slice is over, then whoever has waited longest comes next."""

    def turn(job: JobView) -> tuple[int, float, float, str]:
        over = job.workers > 0 and view.now - job.since >= view.slice
        return (2 if over else 0 if job.workers else 1), job.since, job.arrived, job.name

    return sorted(view.jobs, key=turn)


def filled_evenly(given: dict[str, int], jobs: Sequence[JobView], slots: int) -> dict[str, int]:
    """Hand out what is left, one worker at a time, always to the job that has fewest.

    >>> filled_evenly({"a": 1, "b": 1}, [JobView("a", 0, most=2), JobView("b", 0, most=8)], 8)
    {'a': 2, 'b': 6}
    """
    left = slots - sum(given.values())
    growing = [job for job in jobs if job.name in given]
    while left > 0 and (growing := [job for job in growing if given[job.name] < job.most]):
        smallest = min(growing, key=lambda job: (given[job.name], job.arrived, job.name))
        given[smallest.name] += 1
        left -= 1
    return given
