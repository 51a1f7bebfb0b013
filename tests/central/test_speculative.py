"""Speculative synchronization: a batch is aborted once at most, and redone on fresher weights."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from covey.central.server.speculative import Resync
from covey.central.server.store import Accrued, Fetched
from covey.simulate import Seconds
from tests.worlds import INSTANT, middle, mlp, paced, quadratic, run, slowed, worker

T = 2.0**-6  # seconds of a batch: times that are sums of it are exact
EXACT = replace(INSTANT, compute=Seconds(T))


def test_a_slow_batch_is_aborted_and_redone_on_fresher_weights() -> None:
    """Worker 1 takes 40 ms a batch, in parts of 10; two pushes of worker 0 within 25 ms of its fetch abort it."""
    spec = "specsync(abort_time=0.025, abort_rate=1, parts=4)"
    world = run(quadratic(), spec, 2, steps=3, cluster=slowed(INSTANT, w0=0.8, w1=4))
    versions = [sent.message.version for sent in world.log.kinds(Fetched) if sent.to == worker(1)]
    used = [sent.message.version for sent in world.log.kinds(Accrued) if sent.sender == worker(1)]
    assert versions[:2] == [0, 2] and used[0] == 2, "pushed what was computed at the second fetch"
    parts = [end - begin for begin, end, who in world.log.computes if who == worker(1)]
    assert len(parts) == 3 * 4 + 2 and sum(world.log.values("aborted")) == 1
    assert world.outcome.samples == 2 * 3 * 4, "aborted batches are redone, not lost, and count once"


def test_what_is_pushed_after_an_abort_is_the_gradient_at_the_fresher_weights_alone() -> None:
    """Of the parts that were computed before the abort nothing is left, neither in the gradient nor in the loss."""
    task = quadratic()
    spec = "specsync(abort_time=0.025, abort_rate=1, parts=4)"
    world = run(task, spec, 2, steps=3, cluster=slowed(INSTANT, w0=0.8, w1=4))
    (pushed,) = [s.message for s in world.log.kinds(Accrued) if s.sender == worker(1) and s.message.step == 0]
    assert pushed.version == 2, "it was aborted after the first two pushes of worker 0"
    fresher = torch.ones(5).double()
    for step in range(2):
        fresher -= 0.1 / 2 * (fresher - middle(task, world.deal, 0, step))
    assert torch.allclose(pushed.values.parts[0], fresher - middle(task, world.deal, 1, 0), atol=1e-12)
    assert isinstance(task.data, tuple)
    batch = task.data[0][world.deal.indices(1, 0)]
    loss = 0.5 * float((fresher - batch).square().sum(1).mean())
    assert world.log.values("loss", worker(1))[0] == pytest.approx(loss)


def resyncs(spec: str) -> list[tuple[int, float]]:
    """Which steps of worker 1 were told to begin anew, and how many batches of worker 0 after their first fetch."""
    log = run(quadratic(samples=512), spec, 2, steps=24, cluster=slowed(EXACT, w1=7.5)).log
    fetched: dict[int, float] = {}
    for sent in log.kinds(Fetched):
        if sent.to == worker(1):
            fetched.setdefault(sent.message.step, sent.at)
    told = [(sent.message.step, sent.at) for sent in log.kinds(Resync) if sent.to == worker(1)]
    return [(step, (at - fetched[step]) / T) for step, at in told]


def test_only_pushes_within_the_window_after_the_fetch_count() -> None:
    """Worker 0 pushes every T, a batch of worker 1 takes 7.5 T, and two pushes abort: a window of 2 T just holds them.

    The batch is redone from 3.75 T, after its second part, so that the next one is fetched at 11.25 T.
    """
    assert resyncs(f"specsync(abort_time={2 * T}, abort_rate=1)")[:2] == [(0, 2), (1, 1.75)]
    assert resyncs(f"specsync(abort_time={2 * T - 1e-9:.12f}, abort_rate=1)")[0] == (1, 1.5), "7.5 to 9, not 0 to 2"
    assert resyncs(f"specsync(abort_time={9 * T}, abort_rate=3)")[0] == (0, 6)


def test_a_batch_is_told_to_begin_anew_once() -> None:
    """The redone batch sees as many pushes as the first one did."""
    told = [step for step, _ in resyncs("specsync(abort_time=10, abort_rate=0.5)")]
    assert len(told) >= 2 and len(set(told)) == len(told)


def test_ones_own_push_aborts_nothing() -> None:
    assert not run(quadratic(), "specsync(abort_time=10, abort_rate=0.1)", 1, steps=4).log.kinds(Resync)


def test_word_of_a_batch_that_was_pushed_meanwhile_does_not_abort_the_next() -> None:
    """In one part a batch cannot be aborted: all word comes too late, and there is some of every batch."""
    cluster = slowed(EXACT, w1=7.5)
    log = run(quadratic(), "specsync(abort_time=10, abort_rate=0.5, parts=1)", 2, steps=4, cluster=cluster).log
    assert len([sent for sent in log.kinds(Resync) if sent.to == worker(1)]) >= 1
    assert not log.values("aborted")


def test_without_aborts_it_is_asynchronous() -> None:
    never = run(mlp(), "specsync(abort_rate=1000)", 3, steps=6, cluster=paced([1, 2, 3]))
    plain = run(mlp(), "asynchronous", 3, steps=6, cluster=paced([1, 2, 3]))
    assert all(torch.allclose(never.scored[key], plain.scored[key], atol=1e-12) for key in plain.scored)
    assert never.log.values("staleness") == plain.log.values("staleness")
    assert not never.log.kinds(Resync)


@settings(max_examples=10, deadline=None)
@given(
    slow=st.lists(st.floats(0.2, 8.0), min_size=1, max_size=4), time=st.floats(0.0, 0.1), rate=st.floats(0.1, 2.0),
    parts=st.integers(1, 5), servers=st.integers(1, 2), seed=st.integers(0, 9),
)  # fmt: skip
def test_at_most_one_abort_a_batch_and_no_batch_lost(
    slow: list[float], time: float, rate: float, parts: int, servers: int, seed: int
) -> None:
    spec = f"specsync(abort_time={time:.4f}, abort_rate={rate:.3f}, parts={parts})"
    task = quadratic(samples=24 * len(slow))
    world = run(task, spec, len(slow), steps=6, servers=servers, seed=seed, cluster=paced(slow, 0.3))
    fetches = Counter((s.to, s.message.step) for s in world.log.kinds(Fetched) if s.sender.rank == 0)
    assert set(fetches.values()) <= {1, 2}
    assert sum(fetches.values()) == 6 * len(slow) + len(world.log.values("aborted"))
    told = Counter((s.to, s.message.step) for s in world.log.kinds(Resync))
    assert set(told.values()) <= {1} and {key for key, count in fetches.items() if count == 2} <= told.keys()
    assert len(world.log.kinds(Accrued)) == 6 * len(slow) * servers
    assert world.outcome.samples == 6 * 4 * len(slow)
    last = {(s.to, s.message.step): s.message.version for s in world.log.kinds(Fetched) if s.sender.rank == 0}
    assert all(last[s.sender, s.message.step] == s.message.version for s in world.log.kinds(Accrued) if s.to.rank == 0)
