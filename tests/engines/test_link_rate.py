"""A budget for each link: a leaky bucket at the sender, on sockets and in virtual time."""

from __future__ import annotations

import shutil
import time

import pytest
import torch

from covey.engines.transport.leaky_bucket import SMALLEST, LeakyBucket, frame_at
from covey.errors import PlanError
from tests.engines.test_transport import FRAME, B, Two, load, note
from tests.worlds import INSTANT, mlp, quadratic, run, server, worker


def test_no_more_leaves_a_socket_than_the_bucket_lets_through() -> None:
    """A fast machine could send it all at once; on a slow one it takes longer still."""
    both = Two()
    try:
        both.a.allow(2e6, [B])
        assert both.a.frame == frame_at(2e6, FRAME) == 40_000
        begin = time.monotonic()
        both.a.offer(B, load(0, 100_000))
        both.a.offer(B, note(1), priority=1)
        first, second = both.collect(2)
        assert (first.step, second.step) == (1, 0), "a higher priority overtakes what may not leave yet"
        assert torch.equal(second.what.parts[0], torch.ones(100_000))
        assert time.monotonic() - begin > (400_000 - 40_000) / 2e6 - 0.01
    finally:
        both.a.close()
        both.b.close()
        shutil.rmtree(both.place)


def test_a_bucket_lets_one_frame_through_and_then_its_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    bucket, left = LeakyBucket(1000.0), 0
    for _ in range(1000):
        if not bucket.pause():
            bucket.pour(100)
            left += 100
        clock[0] += 0.01
    assert 9_900 <= left <= 10_100
    assert frame_at(1.0, 1 << 20) == SMALLEST and frame_at(1e12, 1 << 20) == 1 << 20


def test_an_idle_link_saves_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    bucket = LeakyBucket(1000.0)
    clock[0] = 3600.0
    assert bucket.pause() == 0
    bucket.pour(100)
    assert bucket.pause() == pytest.approx(0.1 - 0.005), "a frame takes its time, less what may come late"


def test_in_virtual_time_a_link_carries_its_budget_and_values_stay() -> None:
    """5 numbers of 8 bytes a message at 1000 bytes per second; a step is one up and one down, and 10 ms."""
    free, tight = (run(quadratic(), "bsp", 2, steps=4, cluster=INSTANT, link_rate=b) for b in (None, "8kbit"))
    assert torch.equal(free.scored["w"], tight.scored["w"])
    assert free.outcome.seconds == pytest.approx(4 * 0.010)
    assert tight.outcome.seconds == pytest.approx(4 * (0.010 + 0.040 + 0.040))
    up = [event for event in tight.log.deliveries if (event.sender, event.to) == (worker(0), server(0)) and event.size]
    for count, event in enumerate(up, 1):
        assert count * 40 <= 1000 * event.at + 1e-6


def test_a_budget_holds_for_each_link_by_itself_and_not_inside_a_machine() -> None:
    one, many = (run(quadratic(), "bsp", n, steps=2, cluster=INSTANT, link_rate="8kbit") for n in (1, 4))
    assert one.outcome.seconds == pytest.approx(many.outcome.seconds)
    near = run(quadratic(), "bsp over colocated", 1, steps=2, cluster=INSTANT, link_rate="8kbit")
    assert near.outcome.seconds == pytest.approx(2 * 0.010)


def test_what_waits_for_the_bucket_can_be_overtaken() -> None:
    """Slices of the first layer pass those of the last, which wait in the bucket and not in the network."""
    fast, slow = (
        run(mlp(), f"p3(slice=8, order={order})", 2, steps=5, cluster=INSTANT, link_rate="100kbit")
        for order in ("layers", "fifo")
    )
    assert fast.outcome.seconds < slow.outcome.seconds


def test_a_budget_that_cannot_be_read() -> None:
    with pytest.raises(PlanError, match="cannot read the rate '50'"):
        run(quadratic(), "bsp", 1, steps=1, link_rate="50")
