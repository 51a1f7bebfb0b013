"""How many workers a run has that finds out itself: the knee of what they do together, and no flapping."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from random import Random
from typing import Any

import pytest

import covey
from covey.engines.worker_scaling import BATCHES, WINDOWS, ScaledSeats, WorkerScaling, knee
from covey.errors import PlanError
from covey.message import Address
from covey.simulate import BytesPerSecond, Cluster, Link, Seconds
from covey.spec.worker_range import parse_workers
from tests.worlds import mlp, sgd, worker

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


def test_what_was_measured_before_somebody_went_does_not_count_afterwards() -> None:
    scaling, seconds, samples = WorkerScaling(2, BATCH), 0.0, 0

    def windows(many: int, lasting: float) -> None:
        nonlocal seconds, samples
        for _ in range(many):
            seconds, samples = seconds + lasting, samples + BATCHES * BATCH * 2
            scaling.look(seconds, samples, 2)

    windows(WINDOWS, 1.0)  # the first one only begins
    scaling.look(seconds, samples, 1)
    windows(WINDOWS, 2.0)
    assert scaling.rates == {}
    windows(1, 2.0)
    assert scaling.rates == {2: BATCHES * BATCH * 2 / 2.0}


class Seats:
    """Four seats, and what scaling does with them; a window of each worker takes a second, however many there are."""

    def __init__(self) -> None:
        self.scaled = ScaledSeats(WorkerScaling(4, BATCH))
        self.incarnations, self.empty = {worker(rank): 0 for rank in range(4)}, set[Address]()
        self.seconds, self.samples = 0.0, 0

    def look(self, rate: float = 1.0) -> Address | None:
        """One window later."""
        self.seconds += 1.0
        self.samples += int(BATCHES * BATCH * len(self.incarnations) * rate)
        return self.scaled.look(self.seconds, self.samples, self.incarnations, self.empty)

    def wait(self) -> Address | None:
        return next((who for who in (self.look() for _ in range(4 * WINDOWS)) if who), None)

    def leave(self, who: Address) -> None:
        del self.incarnations[who]
        self.empty.add(who)

    def join(self, who: Address) -> None:
        self.empty.remove(who)
        self.incarnations[who] = 9


def test_only_seats_that_scaling_emptied_are_filled_again() -> None:
    seats = Seats()
    assert seats.wait() == worker(3) and seats.wait() is None, "it is told once"
    seats.leave(worker(3))
    seats.leave(worker(1))  # by itself
    filled = set[Address]()
    for _ in range(20 * WINDOWS):
        if (who := seats.look()) in seats.empty:
            filled.add(who)
            seats.join(who)
        elif who:
            seats.leave(who)
    assert worker(3) in filled and worker(1) not in filled and seats.scaled.given_up == {worker(1)}
    assert seats.scaled.scaling.most == 3, "one seat less is left to scaling"


def test_a_worker_that_was_sent_away_does_not_come_back_and_the_search_begins_again() -> None:
    seats = Seats()
    for _ in range(WINDOWS):
        seats.look()
    seats.leave(worker(2))
    assert seats.look() is None and seats.scaled.scaling.rates == {}
    assert (seats.scaled.scaling.most, seats.scaled.scaling.wanted) == (3, 3)
    seats.join(worker(2))  # somebody asked for it
    assert seats.look() is None and (seats.scaled.scaling.most, seats.scaled.scaling.wanted) == (4, 4)
    assert not seats.scaled.given_up


def test_one_that_died_before_it_went_is_told_again() -> None:
    seats = Seats()
    assert seats.wait() == worker(3)
    seats.incarnations[worker(3)] += 1
    assert seats.look() == worker(3) and seats.look() is None


def changed_seats(faults: str) -> list[str]:
    given: dict[str, Any] = {"engine": "simulated", "steps": 200, "timing_only": True, "runs": False}
    world = Cluster(compute=Seconds(0.01))
    result = covey.fit(mlp(sgd()), "asynchronous", "auto:4", cluster=world, faults=faults, **given)
    assert result.failures == [] and result.samples == 4 * 200 * mlp().step_size
    return [f"{event.event} {event.who}" for event in result.membership or []]


def test_who_leaves_a_run_or_dies_too_often_stays_away() -> None:
    left = changed_seats("leave worker 1@105ms")
    assert left[0] == "leave worker 1" and "join worker 1" not in left and "join worker 2" in left
    died = changed_seats("kill worker 1@105ms for 0.5ms; kill worker 1@106ms for 1ms; kill worker 1@1107.5ms")
    assert died[:3] == ["rebirth worker 1", "rebirth worker 1", "leave worker 1"] and "join worker 1" not in died
    back = changed_seats("leave worker 1@105ms; join worker 1@200ms")
    assert back[:2] == ["leave worker 1", "join worker 1"]


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


def test_numbers_and_ranges_of_workers_are_read() -> None:
    assert parse_workers(4) == parse_workers(" 4 ") == (4, 0, False) and parse_workers("2:8") == (8, 2, False)
    assert parse_workers("3:3") == (3, 3, False) and str(parse_workers("2:8")) == "2:8" and parse_workers(4).asked == 4
    refused = {"many": "write a number", "8:2": "write 2:8", "0": "at least 1", "0:4": "write 1:4", "-1": "a number"}
    for given, told in {**refused, True: "write a number", 2.5: "write a number", 0: "at least 1"}.items():
        with pytest.raises(PlanError, match=told):
            parse_workers(given)  # type: ignore[arg-type]


def test_auto_is_read_and_refused_with_a_trace() -> None:
    assert parse_workers("auto:8") == (8, 1, True) and str(parse_workers("auto:8")) == "auto:8"
    assert parse_workers("auto").most >= 1 and parse_workers("auto").asked == f"auto:{parse_workers('auto').most}"
    with pytest.raises(PlanError, match="at least 1 is needed"):
        parse_workers("auto:0")
    with pytest.raises(PlanError, match="a trace says itself how many there are: use a range, as workers=.1:4."):
        covey.fit(mlp(), "bsp", "auto:4", engine="simulated", spot_trace="examples/spot.csv", runs=False)
