"""The number of replicas follows the load, in virtual time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random

import pytest

from covey.errors import PlanError
from covey.inference.messages import LoadReport
from covey.inference.request_desk import FrontSettings
from covey.inference.scaling.load_forecast import LoadForecast
from covey.inference.scaling.scaler import ScalerSettings, ScalingPlan, replicas_for
from covey.inference.virtual_service import VirtualService

FRONT = FrontSettings(objective=0.1)
SETUP, SLOT = 1.0, 2.0  # seconds: of a start, and for which the oracle chooses a number
BASE = 60.0  # requests per second
SPIKES = ((20, 300, 6, 10), (50, 450, 6, 12), (80, 200, 0, 8))  # when, to how many per second, rising for, staying for
END = 100
ORACLE = 319.0  # replica-seconds; the slow test below finds them


def batch(size: int) -> float:
    """80 requests per second: 4 in half of the objective."""
    return 0.01 + 0.01 * size


def rate(at: float) -> float:
    found = BASE
    for begin, peak, rise, stay in SPIKES:
        if begin <= at < begin + 2 * rise + stay:
            near = min(at - begin, begin + 2 * rise + stay - at) / rise if rise else 1.0
            found = BASE + (peak - BASE) * min(1.0, near)
    return found


def spiky() -> list[float]:
    """Arrivals of Poisson's kind with that rate."""
    rng, at, found, most = Random(27), 0.0, [], 450.0
    while (at := at + rng.expovariate(most)) < END:
        if rng.random() * most < rate(at):
            found.append(at)
    return found


def scaled(least: int, most: int) -> ScalerSettings:
    return ScalerSettings(least=least, most=most, share=0.99, slack=FRONT.budget)


def tried(arrivals: Sequence[float], settings: ScalerSettings, setup: float) -> tuple[float, float]:
    """The share of requests that were late, and the replica-seconds."""
    service = VirtualService(FRONT, 0, batch, scaled=settings, setup=setup)
    for at in arrivals:
        service.request(at + 2)
    late = sum(one.answer.status != 200 or one.seconds > FRONT.objective for one in service.run())
    return late / len(arrivals), service.replica_seconds


def test_a_spiky_load_is_answered_in_time_for_little_more_than_an_oracle_needs() -> None:
    late, seconds = tried(spiky(), scaled(1, 8), SETUP)
    assert late <= 0.01, late
    assert seconds <= 1.2 * ORACLE, seconds


@pytest.mark.full
def test_the_oracle_needs_what_is_written_above() -> None:
    """It knows all arrivals: in each slot it has the fewest replicas that answer 99 % of them in time."""
    arrivals, needs = spiky(), []
    for slot in range(math.ceil(END / SLOT)):
        begin = slot * SLOT
        inside = [at - begin for at in arrivals if begin <= at < begin + SLOT]
        needs.append(next(count for count in range(1, 20) if tried(inside, scaled(count, count), 0.0)[0] <= 0.01))
    starts = sum(max(0, after - before) for before, after in zip([0, *needs], needs, strict=False))
    assert sum(needs) * SLOT + starts * SETUP == ORACLE

    service = VirtualService(FRONT, 0, batch, setup=SETUP)
    now: list[int] = []
    for slot, need in enumerate(needs):
        for rank in range(len(now), need):
            service.join(slot * SLOT, rank)
        for rank in range(need, len(now)):
            service.lose(slot * SLOT, rank)
        now = list(range(need))
    for at in arrivals:
        service.request(at)
    late = sum(one.answer.status != 200 or one.seconds > FRONT.objective for one in service.run())
    assert late / len(arrivals) <= 0.02, "with queues across slots, and batches that must find their size"


def test_the_rate_is_forecast_along_a_line_and_not_from_chance() -> None:
    rising, steady = LoadForecast(4.0), LoadForecast(4.0)
    for tick in range(40):
        at = tick / 4
        rising.learn(at, round(100 * at + 25 * at * at))  # 100 + 50 t per second
        steady.learn(at, round(100 * at) + (tick % 3))
    assert rising.rate(2.0) == pytest.approx(100 + 50 * (9.75 + 2.0), rel=0.02)
    assert steady.rate(2.0) == pytest.approx(100, rel=0.02)
    steady.learn(10.0, 1000 + 300)
    assert steady.rate(0.0) > 1000, "what has certainly come last counts at once"
    assert LoadForecast(4.0).rate(1.0) == 0


def test_a_load_that_falls_is_not_expected_to_fall_further() -> None:
    falling = LoadForecast(4.0)
    for tick in range(17):
        at = tick / 4
        falling.learn(at, round(1000 * at - 100 * at * at))  # 1000 - 200 t per second
    assert falling.rate(2.0) == falling.rate(0.0) == pytest.approx(200, rel=0.1)


def test_replicas_are_as_many_as_the_queue_needs() -> None:
    assert replicas_for(0.0, 80, 0.99, 0.05) == replicas_for(100, 0.0, 0.99, 0.05) == 0
    for rate in (20.0, 300.0):
        count = replicas_for(rate, 80, 0.99, 0.05)
        rng, at, arrivals = Random(1), 0.0, []
        while len(arrivals) < 1500:
            arrivals.append(at := at + rng.expovariate(rate))
        assert tried(arrivals, scaled(count, count), 0.0)[0] <= 0.01, rate
        assert count - 1 <= 1.7 * rate / 80, "and not many more"


def report(arrived: float, *ready: int, waiting: int = 0) -> LoadReport:
    return LoadReport(int(arrived), waiting, ready, 80.0)


def test_replicas_are_started_before_they_are_needed_by_the_time_that_they_take() -> None:
    """The load rises by 40 per second in every second, to 500; a replica takes 5 s, or half a second."""
    slow, fast = ScalingPlan(scaled(1, 20)), ScalingPlan(scaled(1, 20))
    for plan, setup in ((slow, 5.0), (fast, 0.5)):
        assert plan.decide(report(0), 0.0) == ([0], [])
        plan.decide(report(0, 0), setup)
        assert plan.setup == setup
    counts = []
    for plan in (slow, fast):
        for tick in range(1, 41):
            at = tick / 4
            plan.decide(report(20 * at * at + 100 * at, 0), 10 + at)
        counts.append(plan.next_rank)
    assert counts == [replicas_for(500 + 40 * ahead, 80, 0.99, 0.05) for ahead in (5.25, 0.75)]


def test_a_queue_that_its_replicas_empty_in_time_starts_no_more_of_them() -> None:
    """Four of them answer 1600 requests in the 5 s that one may wait; what is beyond that needs more replicas."""
    for waiting, more in ((1600, 0), (3200, 4)):
        plan = ScalingPlan(ScalerSettings(least=4, most=8, share=0.99, slack=5.0))
        plan.decide(report(0, 0, 1, 2, 3), 0.0)
        assert len(plan.decide(report(0, 0, 1, 2, 3, waiting=waiting), 0.25)[0]) == more


def test_idle_replicas_are_let_go_late_and_the_newest_first() -> None:
    plan = ScalingPlan(scaled(1, 8))
    plan.decide(report(0), 0.0)
    plan.decide(report(0, 0), 1.0)
    plan.needs.append((1.0, 4))
    gone = {at: plan.decide(report(0, 0, 1, 2, 3), at)[1] for at in (1.5, 1.9, 2.1)}
    assert plan.linger == 1.0 and gone == {1.5: [], 1.9: [], 2.1: [3, 2, 1]}


def test_a_replica_that_never_comes_is_not_waited_for() -> None:
    plan = ScalingPlan(scaled(2, 2))
    assert plan.decide(report(0), 0.0) == ([0, 1], [])
    assert plan.decide(report(0, 0), 1.0) == ([], [])
    assert plan.decide(report(0, 0), 100.0) == ([2], [])


def test_a_replica_goes_only_when_it_has_no_batch() -> None:
    """The load falls from 150 to 10 per second: no answer is lost with the replicas that go."""
    service = VirtualService(FRONT, 0, batch, scaled=scaled(1, 8), setup=0.5)
    for number in range(1500):
        service.request(1 + number / 150)
    for number in range(100):
        service.request(11 + number / 10)
    answers = service.run()
    assert {one.answer.status for one in answers} == {200}
    assert 21 + 10 <= service.replica_seconds <= 21 + 30


def test_replicas_of_a_version_have_ranks_of_its_own() -> None:
    plan = ScalingPlan(ScalerSettings(least=2, most=3, share=0.99, slack=0.05, versions=3), 1)
    assert plan.decide(report(0), 0.0) == ([1, 4], [])
    assert plan.decide(report(900, 1, 4), 1.0) == ([7], [])


def test_numbers_that_contradict_themselves_are_refused() -> None:
    for least, most in ((0, 3), (4, 3)):
        with pytest.raises(PlanError, match="the least and the most"):
            scaled(least, most)
