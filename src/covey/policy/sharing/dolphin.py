"""Dolphin (Lee et al. 2016): the workers of a job follow a cost model that is fitted online."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from covey.policy.sharing.allocation import Allocation, equal_shares
from covey.policy.sharing.job_view import JobsView

POINTS = 32  # measured speeds that are used


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds in which a job does one sample of each worker: what takes longer of computing and communicating."""

    compute: float  # of all samples, by one worker
    traffic: float  # of one worker with one server

    def of(self, workers: int, servers: int) -> float:
        return max(self.compute / workers, self.traffic * workers / servers)


def dolphin(view: JobsView) -> Allocation:
    """Equal shares, of which each job uses as much as its cost model says: more workers would wait for servers."""
    shares = equal_shares(view)
    given = {}
    for job in view.jobs:
        if job.name in shares:
            given[job.name] = max(job.least, _workers(job.speeds, shares[job.name], job.servers))
    return Allocation(given)


def _workers(speeds: tuple[tuple[int, float], ...], most: int, servers: int) -> int:
    return cheapest(fitted(speeds, servers), most, servers)


@lru_cache(maxsize=100_000)
def fitted(speeds: tuple[tuple[int, float], ...], servers: int) -> StepCost:
    """The cost model that fits the measured speeds best: up to some number of workers computing takes longer."""
    points = sorted((workers, 1 / speed) for workers, speed in speeds if workers > 0 and speed > 0)
    if len(points) > POINTS:  # as every split of them is tried
        points = [points[i * (len(points) - 1) // (POINTS - 1)] for i in range(POINTS)]
    best, found = float("inf"), StepCost(1.0, 0.0)
    for split in range(1, len(points) + 1):
        compute = _mean([seconds * workers for workers, seconds in points[:split]])
        traffic = _mean([seconds * servers / workers for workers, seconds in points[split:]])
        cost = StepCost(compute, traffic)
        error = sum((cost.of(workers, servers) - seconds) ** 2 for workers, seconds in points)
        if error < best:
            best, found = error, cost
    return found


def cheapest(cost: StepCost, most: int, servers: int) -> int:
    """The number of workers, at most so many, with the least cost; the fewest where several have it."""
    # Computing takes less with each worker and communicating more: the least is where they cross.
    crossing = math.sqrt(cost.compute * servers / cost.traffic) if cost.traffic > 0 else math.inf
    near = int(min(crossing, most))
    among: list[int] = [1, *range(max(1, near - 1), min(most, near + 2) + 1)]
    return min(among, key=lambda workers: (cost.of(workers, servers), workers))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
