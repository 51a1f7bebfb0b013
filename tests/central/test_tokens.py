"""TensorFlow's tokens: gradients are counted, not workers; a step may take more of them than there are workers."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from covey.central.server.shard import Push
from covey.errors import PlanError
from covey.simulate import BytesPerSecond, Link, Seconds
from tests.worlds import INSTANT, middle, paced, quadratic, run, server, slowed


def test_with_more_gradients_than_workers_some_worker_supplies_two() -> None:
    """Three a step of two workers: all of them fresh, none dropped, and each update is the mean of its three."""
    task = quadratic(lr=0.1)
    world = run(task, "tensorflow(size=3) over servers(count=1)", 2, steps=9, cluster=slowed(INSTANT, w1=2.5))
    steps = defaultdict(list)
    for event in world.log.deliveries:
        if isinstance(event.message, Push):
            steps[event.message.version].append(event.message)
    assert [len(steps[version]) for version in sorted(steps)] == [3] * 6
    assert all(max(Counter(push.sender.rank for push in step).values()) >= 2 for step in steps.values())
    assert world.log.values("dropped") == [] and set(world.log.values("staleness")) == {0}
    w = torch.ones(5).double()
    for version in sorted(steps):
        middles = [middle(task, world.deal, push.sender.rank, push.step) for push in steps[version]]
        w = w - 0.1 * (w - torch.stack(middles).mean(0))
    assert torch.allclose(world.scored["w"], w, atol=1e-12)


def test_servers_beside_workers_do_not_give_the_last_token_to_one_each() -> None:
    """Each worker's own server hears it first: if each gave out its own tokens, both would wait for ever."""
    far = Link(bandwidth=BytesPerSecond(1e6), latency=Seconds(0.01))
    world = run(quadratic(), "tensorflow(size=3)", 2, steps=9, cluster=replace(INSTANT, link=far))
    assert len(world.log.values("update")) == 6
    counts = {Counter(e.message.version for e in world.log.kinds(Push) if e.to == server(k))[0] for k in range(2)}
    assert counts == {3}, "a gradient is of its token's version on all servers"


def test_a_gradient_is_late_on_all_servers_or_on_none() -> None:
    """The slow worker's token comes to some servers after their next update, and reads newer numbers there."""
    far = Link(bandwidth=BytesPerSecond(1e6), latency=Seconds(0.004))
    cluster = replace(slowed(INSTANT, w1=2.5), link=far)
    log = run(quadratic(), "tensorflow(size=2)", 3, steps=9, cluster=cluster).log
    versions = defaultdict(set)
    for event in log.kinds(Push):
        versions[event.sender, event.message.step].add(event.message.version)
    assert all(len(found) == 1 for found in versions.values())
    assert sum(log.values("dropped")) > 0, "and some are"


@settings(max_examples=10, deadline=None)
@given(
    slow=st.lists(st.floats(0.2, 5.0), min_size=1, max_size=4), size=st.integers(1, 7), samples=st.integers(9, 40),
    late=st.floats(0.0, 0.05), epoch=st.sampled_from([0.5, 1.0]), seed=st.integers(0, 9),
)  # fmt: skip
def test_nobody_waits_for_ever(
    slow: list[float], size: int, samples: int, late: float, epoch: float, seed: int
) -> None:
    """Whatever the speeds, though shards are unequal, links slow, and some leave with a token that they took."""
    cluster = replace(paced(slow, 0.3), link=Link(bandwidth=BytesPerSecond(1e6), latency=Seconds(late)))
    spec = f"tensorflow(size={size}, epoch={epoch})"
    log = run(quadratic(samples=samples), spec, len(slow), epochs=2, seed=seed, cluster=cluster).log
    versions = Counter(event.message.version for event in log.kinds(Push) if event.to == server(0))
    applied = len(log.values("staleness"))
    assert set(log.values("staleness")) <= {0} and applied + sum(log.values("dropped")) <= sum(versions.values())
    assert all(versions[version] >= size for version in range(max(versions, default=0))), "only the last may be short"


@pytest.mark.parametrize(("size", "samples", "slow"), [(4, 30, [1, 1, 4]), (5, 24, [1, 3, 5])])
def test_who_finds_the_epoch_over_gives_its_token_back(size: int, samples: int, slow: list[float]) -> None:
    """It has read, and leaves without a gradient: the one that waits for a token gets that one, and leaves too."""
    spec = f"tensorflow(size={size}, epoch=0.3) over servers(count=1)"
    log = run(quadratic(samples=samples), spec, len(slow), epochs=1, cluster=paced(slow, 0.0)).log
    assert len(log.values("update")) > 0


def test_distinct_workers_cannot_be_more_than_there_are() -> None:
    with pytest.raises(PlanError, match="with count=gradients it may be more"):
        run(quadratic(), "quorum(size=3)", 2, steps=1)
