"""Dolphin (Lee et al. 2016): servers, workers and the placement of blocks follow a cost model that is fitted online."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from covey.policy.sharing.allocation import Allocation, admitted, filled_evenly, in_turns
from covey.policy.sharing.job_view import JobsView, JobView


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds in which a job does one sample of each worker: what takes longer of computing and communicating."""

    compute: float  # of all samples, by one worker
    traffic: float  # of one worker with one server

    def of(self, workers: int, servers: int) -> float:
        return max(self.compute / workers, self.traffic * workers / servers)


class BlockMove(NamedTuple):
    """One block of the parameters goes from one server to another, with its ownership."""

    block: int
    source: int
    to: int


def dolphin(view: JobsView) -> Allocation:
    """Equal shares, of which each job uses as much as its cost model says: more workers would wait for servers."""
    order = in_turns(view)
    shares = filled_evenly(admitted(order, view.slots), order, view.slots)
    given, servers = {}, {}
    for job in order:
        if job.name in shares:
            workers, servers[job.name] = best_split(fitted(job), shares[job.name], job.servers)
            given[job.name] = max(job.least, min(workers, shares[job.name]))
    return Allocation(given, servers=servers)


def fitted(job: JobView) -> StepCost:
    """The cost model that fits the measured speeds best: up to some number of workers computing takes longer."""
    points = sorted((workers, 1 / speed) for workers, speed in job.speeds if workers > 0 and speed > 0)
    best, found = float("inf"), StepCost(1.0, 0.0)
    for split in range(1, len(points) + 1):
        compute = _mean([seconds * workers for workers, seconds in points[:split]])
        traffic = _mean([seconds * job.servers / workers for workers, seconds in points[split:]])
        cost = StepCost(compute, traffic)
        error = sum((cost.of(workers, job.servers) - seconds) ** 2 for workers, seconds in points)
        if error < best:
            best, found = error, cost
    return found


def best_split(cost: StepCost, workers: int, servers: int) -> tuple[int, int]:
    """The cheapest numbers of workers and servers, at most so many of each; the fewest where several are cheapest."""
    tried = [(w, s) for w in range(1, workers + 1) for s in range(1, servers + 1)]
    return min(tried, key=lambda pair: (cost.of(*pair), sum(pair), pair))


def block_moves(owners: Mapping[int, int], servers: Sequence[int]) -> list[BlockMove]:
    """The fewest moves after which these servers have equally many blocks; each block has one owner all the time.

    >>> block_moves({0: 0, 1: 0, 2: 0, 3: 0}, [0, 1])
    [BlockMove(block=0, source=0, to=1), BlockMove(block=1, source=0, to=1)]
    """
    least, more = divmod(len(owners), len(servers))
    counts = Counter(dict.fromkeys(servers, 0))
    counts.update(owner for owner in owners.values() if owner in counts)
    fullest = sorted(servers, key=lambda server: (-counts[server], server))
    room = {server: least + (place < more) for place, server in enumerate(fullest)}
    moves: list[BlockMove] = []
    for block, owner in sorted(owners.items()):
        if owner in room and counts[owner] <= room[owner]:
            continue
        to = min(room, key=lambda server: (counts[server] - room[server], server))
        moves.append(BlockMove(block, owner, to))
        counts[to] += 1
        counts[owner] -= owner in room
    return moves


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
