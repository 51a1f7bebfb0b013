"""Runs in virtual time whose workers come and go, and what holds of them: each batch counts once at every server."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import covey
from covey.data.leases import Lease
from covey.simulate import Cluster, Seconds
from tests.worlds import mlp, sgd

STEPS = 4
UNEVEN = Cluster(compute=Seconds(0.01), jitter=0.3)
EFFECTS = 60  # a worker has fewer
HALF = "delay worker 1 -> server 1@{n}ms by 20ms; leave worker 1@{m}ms"  # only the first server has its last gradients


def run(strategy: str, faults: str = "", workers: int | str = "1:3", **given: Any) -> covey.Result:
    return covey.fit(
        strategy=strategy, workers=workers, engine="simulated", faults=faults or None, runs=False,
        **{"task": mlp(sgd(momentum=0.9)), "cluster": UNEVEN, "steps": STEPS, **given},
    )  # fmt: skip


def check_once(found: Mapping[str, Iterable[Lease]], servers: int, seats: int = 3) -> None:
    """Each of the servers has had every batch of the run exactly once."""
    wanted = Counter(Lease(seat, number) for seat in range(seats) for number in range(STEPS))
    assert len(found) == servers
    for who, leases in found.items():
        assert Counter(leases) == wanted, who


def check_largest(strategy: str, servers: int) -> None:
    """A range from which nobody goes is a run of its largest number."""
    ranged, fixed = (run(strategy, workers=workers, servers=servers) for workers in ("2:3", 3))
    assert ranged.samples == fixed.samples and ranged.updates == fixed.updates
