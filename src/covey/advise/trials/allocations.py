"""Which of the spot machines pay? The money for the same work with some of them, as Proteus' BidBrain weighs it.

Harlap et al. 2017: what an allocation is expected to cost, over the work that it is expected to do. Here both come from
simulating the trace; machines are paid by the second, so nothing is refunded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from covey.advise.ranked import SpotAllocation
from covey.advise.situation import Situation
from covey.errors import CoveyError
from covey.run import fit
from covey.simulate import Cluster
from covey.simulate.spot_trace import HEADER, SpotTrace
from covey.task import Task

MOST = 4  # allocations that are tried, besides all spot machines


def allocations(
    task: Task, now: Situation, spec: str, trace: SpotTrace, steps: int, seconds: float
) -> list[SpotAllocation]:  # fmt: skip
    """The work that all workers do in `steps` steps, on some of the spot machines; the cheapest allocation first.

    Machines that are there for longest for their money, in the first `seconds` of the trace, are taken first.
    """
    stay = [worker for worker in range(now.workers) if worker not in trace.workers]
    spot, found = by_worth(trace, now.cluster, seconds), list[SpotAllocation]()
    for number in tried(len(spot), at_least=0 if stay else 1):
        try:
            found.append(_allocation(task, now, spec, trace, steps, sorted([*stay, *spot[:number]])))
        except CoveyError:  # too few are left, or a strategy needs more workers
            continue
    return sorted(found, key=lambda one: one.money)


def by_worth(trace: SpotTrace, cluster: Cluster, seconds: float) -> list[int]:
    """The workers of a trace, by the time that their machines are there for their money, the longest first."""
    there, prices = trace.seconds_present(seconds), cluster.prices(trace.workers)

    def worth(worker: int) -> float:
        return there[worker] / prices[worker] if prices.get(worker) else math.inf

    return sorted(there, key=lambda worker: (-worth(worker), worker))


def tried(spot: int, at_least: int) -> list[int]:
    """How many spot machines to try, evenly spread; all of them are tried besides.

    >>> tried(3, 0), tried(9, 1)
    ([0, 1, 2], [1, 3, 5, 7])
    """
    numbers = range(at_least, spot)
    return sorted({numbers[place * len(numbers) // MOST] for place in range(MOST)}) if numbers else []


def _allocation(
    task: Task, now: Situation, spec: str, trace: SpotTrace, steps: int, workers: Sequence[int]
) -> SpotAllocation:  # fmt: skip
    cluster, spot = part_of(now.world(spec), workers), [worker for worker in workers if worker in trace.workers]
    steps_of_fewer = math.ceil(steps * now.workers / len(workers))  # the same work
    lines = [line for line in trace.lines if line.worker in spot]
    with TemporaryDirectory() as folder:
        file = Path(folder, "trace.csv")
        rows = [
            f"{line.at:.9f}s,{workers.index(line.worker)},{line.event},{f'{line.notice:.9f}s' if line.notice else ''}"
            for line in lines
        ]
        file.write_text("\n".join([",".join(HEADER), *rows]))
        result = fit(
            task, spec, f"1:{len(workers)}" if spot else len(workers), engine="simulated", cluster=cluster,
            timing_only=True, steps=steps_of_fewer, runs=False, spot_trace=file if spot else None,
        )  # fmt: skip
    assert result.cost, "only clusters with prices are weighed"
    return SpotAllocation(spot=spot, seconds=result.seconds, money=result.cost.money)


def part_of(cluster: Cluster, workers: Sequence[int]) -> Cluster:
    """The cluster of some of the workers, which are numbered anew."""
    places = {worker: place for place, worker in enumerate(workers)}

    def kept(values: Mapping[int, float]) -> dict[int, float]:
        return {places[worker]: value for worker, value in values.items() if worker in places}

    names = {f"worker {worker}": f"worker {place}" for worker, place in places.items()}
    stays = [host for host in {*cluster.links, *cluster.kills} if host in names or not host.startswith("worker ")]
    links = {names.get(host, host): cluster.links[host] for host in stays if host in cluster.links}
    kills = {names.get(host, host): cluster.kills[host] for host in stays if host in cluster.kills}
    return replace(
        cluster, links=links, kills=kills, slowdowns=kept(cluster.slowdowns), price=kept(cluster.price),
        spot_price=kept(cluster.spot_price), watts=kept(cluster.watts),
        workers=len(workers) if cluster.workers else None,
    )  # fmt: skip
