"""What tells Ako apart: each peer gets another partition, and every number of every gradient exactly once."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import covey
from covey import catalog
from covey.decentral.gossip.ako import Part
from covey.errors import PlanError
from covey.task import load_task
from covey.vector import chunk
from tests.worlds import INSTANT, World, alone, middle, paced, quadratic, run, sgd, slowed, worker

SIZE = 11


def gradient(world: World, rank: int, step: int) -> Tensor:
    """Nothing moves at a learning rate of 0, and all weights are 1."""
    return torch.ones(SIZE).double() - middle(quadratic(size=SIZE), world.deal, rank, step)


@settings(max_examples=10, deadline=None)
@given(
    slow=st.lists(st.floats(0.2, 8.0), min_size=2, max_size=6), partitions=st.integers(1, 7), seed=st.integers(0, 50)
)
def test_every_number_reaches_every_peer_exactly_once(slow: list[float], partitions: int, seed: int) -> None:
    steps, cluster = 13, paced(slow, jitter=0.5)
    strategy = f"ako(partitions={partitions})"
    world = run(quadratic(size=SIZE, lr=0.0), strategy, len(slow), steps=steps, cluster=cluster, seed=seed)
    came: dict[tuple[int, int], list[Part]] = defaultdict(list)
    for event in world.log.deliveries:
        if isinstance(event.message, Part):
            came[event.sender.rank, event.to.rank].append(event.message)
    assert len(came) == len(slow) * (len(slow) - 1)
    for (sender, _), parts in came.items():
        assert len(parts) == steps
        fresh = [0] * partitions  # the first gradient of which this partition has not been sent
        for step, part in enumerate(parts):
            window = range(fresh[part.partition], step + 1)
            assert len(window) <= partitions, "it waited longer than partitions - 1 steps"
            start, stop = chunk(SIZE, partitions, part.partition)
            expected = torch.stack([gradient(world, sender, number)[start:stop] for number in window]).sum(0)
            assert torch.allclose(part.grads.parts[0], expected, atol=1e-12)
            fresh[part.partition] = step + 1


@pytest.mark.parametrize("workers", [3, 4, 6])
def test_in_one_step_every_peer_gets_another_partition(workers: int) -> None:
    log = run(quadratic(size=30), "ako", workers, steps=5).log
    for rank in range(workers):
        parts = [event.message for event in log.kinds(Part) if event.sender == worker(rank)]
        numbers = [part.partition for part in parts if isinstance(part, Part)]
        for step in range(5):
            assert sorted(numbers[step * (workers - 1) : (step + 1) * (workers - 1)]) == list(range(workers - 1))


def test_a_step_costs_one_gradient_however_many_the_workers_are() -> None:
    for workers in (2, 4, 7):
        log = run(quadratic(size=60), "ako", workers, steps=5).log
        assert log.bytes_from(worker(0)) == 5 * 60 * 8


def test_with_one_partition_everyone_gets_every_gradient() -> None:
    """And steps on it in the step after: own gradient plus what came, over n."""
    world = run(quadratic(lr=0.3), "ako(partitions=1)", 2, steps=1, cluster=slowed(INSTANT, w1=2))
    own = {rank: torch.ones(5).double() - middle(quadratic(), world.deal, rank, 0) for rank in range(2)}
    for rank in range(2):
        assert torch.allclose(world.flat(worker(rank)), 1 - 0.3 * (own[0] + own[1]) / 2, atol=1e-12)


def test_one_worker_trains_alone() -> None:
    world = run(quadratic(), "ako", 1, steps=9)
    assert torch.equal(world.scored["w"], alone(quadratic(), 9, 4)["w"])


def test_nobody_waits_before_the_end() -> None:
    world = run(quadratic(), "ako", 3, steps=8, cluster=slowed(INSTANT, w1=10))
    ends = {rank: max(end for _, end, who in world.log.computes if who.rank == rank) for rank in range(3)}
    assert ends[0] == pytest.approx(0.08) and ends[2] == pytest.approx(0.08)
    assert all(wait.begin >= ends[wait.who.rank] - 1e-9 for wait in world.log.waits)


@pytest.mark.full
def test_partial_exchange_costs_no_epochs_but_delayed_gradients_and_momentum_do_not_go_together() -> None:
    """To 95 % on the digits: without momentum, or slowly, as fast as bsp; fast with momentum, no delayed gradient is.

    A plain loop in which three quarters of the gradient come two steps late needs more than 60 epochs there, too.
    """
    digits = load_task("examples/digits.py")

    def epochs(spec: str, rate: float, momentum: float) -> float:
        task = replace(digits, optimizer=sgd(rate, momentum=momentum))
        return covey.fit(task, spec, 4, engine="simulated", epochs=60, until="accuracy>=0.95").samples / 1437

    assert epochs("ako", 1.0, 0.0) < epochs("bsp", 1.0, 0.0) + 3
    assert epochs("ako", 0.02, 0.9) < epochs("bsp", 0.02, 0.9) + 3
    assert epochs("ako", 0.1, 0.9) > 2 * epochs("bsp", 0.1, 0.9)


def test_no_partition_is_refused() -> None:
    with pytest.raises(PlanError, match="at least 1"):
        catalog.resolve("ako(partitions=0)", 3)
