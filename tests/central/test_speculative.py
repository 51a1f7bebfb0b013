"""Speculative synchronization: a batch is aborted once at most, and redone on fresher weights."""

from __future__ import annotations

from collections import Counter

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from covey.central.speculative import Resync
from covey.central.store import Accrued, Fetched
from tests.worlds import INSTANT, mlp, paced, quadratic, run, slowed, worker


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
    assert len(world.log.kinds(Accrued)) == 6 * len(slow) * servers
    assert world.outcome.samples == 6 * 4 * len(slow)
    last = {(s.to, s.message.step): s.message.version for s in world.log.kinds(Fetched) if s.sender.rank == 0}
    assert all(last[s.sender, s.message.step] == s.message.version for s in world.log.kinds(Accrued) if s.to.rank == 0)
