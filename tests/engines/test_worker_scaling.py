"""How many workers a run has that finds out itself: the knee of what they do together, and no flapping."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from random import Random
from typing import Any

import pytest

import covey
from covey.engines.worker_scaling import BATCHES, WINDOWS, WorkerScaling, knee
from covey.errors import PlanError
from covey.simulate import BytesPerSecond, Cluster, Link, Seconds
from covey.spec.worker_range import parse_workers
from tests.worlds import mlp, sgd

BATCH = 4


def saturated(at: float) -> Callable[[int], float]:
    return lambda workers: 100.0 * min(workers, at)


class World:
    """Where all come and go at once; it has done so many samples in so many seconds."""

    def __init__(self, noise: float = 0.0, seed: int = 0) -> None:
        self.scaling, self.noise, self.chance = WorkerScaling(8, BATCH), noise, Random(seed)
        self.seconds, self.samples = 0.0, 0

    def run(self, rate: Callable[[int], float], windows: int) -> list[int]:
        """The numbers of workers, window by window."""
        workers, seen = self.scaling.look(self.seconds, self.samples, self.scaling.wanted), list[int]()
        for _ in range(windows):
            done = BATCHES * BATCH * workers
            self.seconds += done / (rate(workers) * max(0.1, self.chance.gauss(1.0, self.noise)))
            self.samples += done
            workers = self.scaling.look(self.seconds, self.samples, workers)
            seen.append(workers)
        return seen


def changes(seen: list[int]) -> int:
    return sum(one != other for one, other in pairwise(seen))


@pytest.mark.parametrize(("at", "knee"), [(1, 1), (2, 2), (3.1, 3), (3.4, 4), (5, 5), (8, 8)])
def test_it_settles_at_the_knee(at: float, knee: int) -> None:
    world = World()
    seen = world.run(saturated(at), 60)
    assert world.scaling.settled and seen[-1] == knee, "the last one adds at least a quarter of a worker"
    assert changes(seen) <= 6, "by halving"


def test_a_worker_that_adds_a_little_is_neither_released_nor_taken() -> None:
    rates = {1: 100.0, 2: 200.0, 3: 240.0}  # the third adds 0.4 of a worker
    assert knee(rates, 3, 1, 3) == (3, True)
    assert knee(rates, 2, 1, 3) == (2, True)


@pytest.mark.parametrize("seed", range(20))
def test_noise_does_not_make_it_flap(seed: int) -> None:
    world = World(noise=0.1, seed=seed)
    seen = world.run(saturated(4), 400)
    assert world.scaling.settled and changes(seen) <= 6
    assert changes(seen[50:]) == 0, "it has settled, and stays"
    assert 3 <= seen[-1] <= 5


def test_it_searches_again_when_the_world_has_changed() -> None:
    world = World()
    assert world.run(saturated(2), 60)[-1] == 2
    assert world.run(lambda workers: 2 * saturated(7)(workers), 80)[-1] == 7, "the bottleneck is gone"
    assert world.run(saturated(1), 100)[-1] == 1


def test_nothing_is_measured_while_somebody_is_on_the_way() -> None:
    scaling = WorkerScaling(2, BATCH)
    per_window = BATCHES * BATCH * 2
    for window in range(WINDOWS + 1):
        wanted = scaling.look(window * 1.0, window * per_window, 2)
    assert wanted == 1 and scaling.rates == {2: per_window}
    for window in range(50):  # it is slow to go
        assert scaling.look(10.0 + window, 1000 + window * per_window, 2) == 1
    assert scaling.rates == {2: per_window}


def test_a_run_with_a_bottlenecked_server_releases_those_who_add_nothing() -> None:
    task = mlp(sgd(momentum=0.9))
    given: dict[str, Any] = {"engine": "simulated", "steps": 250, "timing_only": True, "runs": False}
    size = sum(p.nbytes for p in task.model().parameters())
    narrow = Link(bandwidth=BytesPerSecond(size / 0.005), latency=Seconds(1e-6))  # 5 ms each way: two at a time
    world = Cluster(compute=Seconds(0.01), link=Link(bandwidth=BytesPerSecond(1e12)), links={"server 0": narrow})
    result = covey.fit(task, "asynchronous", "auto:6", cluster=world, **given)
    events = result.membership or []
    assert [event.event for event in events][:3] == ["leave"] * 3 and changes([event.workers for event in events]) <= 9
    assert 2 <= events[-1].workers <= 4, [event.workers for event in events]
    wide = covey.fit(task, "asynchronous", "auto:6", cluster=Cluster(compute=Seconds(0.01)), **given)
    assert (wide.membership or [])[-1].workers == 6, "all add as much: the one that was tried without comes back"
    assert result.samples == wide.samples == 250 * 6 * task.step_size


def test_auto_is_read_and_refused_with_a_trace() -> None:
    assert parse_workers("auto:8") == (8, 1, True) and str(parse_workers("auto:8")) == "auto:8"
    assert parse_workers("auto").most >= 1 and parse_workers("auto").asked == f"auto:{parse_workers('auto').most}"
    with pytest.raises(PlanError, match="at least 1 is needed"):
        parse_workers("auto:0")
    with pytest.raises(PlanError, match="a trace says itself how many there are: use a range, as workers=.1:4."):
        covey.fit(mlp(), "bsp", "auto:4", engine="simulated", spot_trace="examples/spot.csv", runs=False)
