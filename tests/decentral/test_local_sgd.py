"""What tells local SGD apart: workers drift for a period, then all hold the mean of all."""

from __future__ import annotations

import pytest
import torch

from covey import catalog
from covey.errors import PlanError
from covey.exchange.collectives import Chunk
from tests.worlds import INSTANT, middle, mlp, quadratic, run, sgd, slowed


@pytest.mark.parametrize(("period", "steps", "rings"), [(1, 6, 6), (2, 6, 3), (4, 11, 2), (8, 7, 0)])
def test_one_allreduce_a_period(period: int, steps: int, rings: int) -> None:
    log = run(quadratic(), f"local_sgd(period={period})", 3, steps=steps).log
    assert len(log.kinds(Chunk)) == rings * 3 * 2 * 2


def test_workers_drift_until_the_period_is_over_and_then_agree_to_the_bit() -> None:
    apart = run(quadratic(), "local_sgd(period=4)", 3, steps=7).workers()
    agreed = run(quadratic(), "local_sgd(period=4)", 3, steps=8).workers()
    assert not torch.equal(apart[0].flat.parts[0], apart[1].flat.parts[0])
    for other in agreed[1:]:
        assert torch.equal(agreed[0].flat.parts[0], other.flat.parts[0])


def test_two_local_steps_and_a_mean() -> None:
    """w_i = two steps of one's own; then their mean."""
    task = quadratic(lr=0.5)
    world = run(task, "local_sgd(period=2)", 3, steps=2)
    ends = []
    for rank in range(3):
        w = torch.ones(5).double()
        for step in range(2):
            w = w - 0.5 * (w - middle(task, world.deal, rank, step))
        ends.append(w)
    assert torch.allclose(world.scored["w"], torch.stack(ends).mean(0), atol=1e-12)


def test_the_scored_model_is_the_mean_also_in_the_middle_of_a_period() -> None:
    world = run(quadratic(), "local_sgd(period=100)", 3, steps=3)
    assert not world.log.sends
    mean = torch.stack([replica.flat.parts[0] for replica in world.workers()]).mean(0)
    assert torch.allclose(world.scored["w"], mean, atol=1e-12)


def test_momentum_stays_ones_own() -> None:
    states = [
        next(iter(replica.optimizer.state.values()))["momentum_buffer"]
        for replica in run(mlp(sgd(momentum=0.9)), "local_sgd(period=2)", 3, steps=4).workers()
    ]
    assert not torch.equal(states[0], states[1])


def test_it_waits_only_at_the_end_of_a_period() -> None:
    """A worker three times as slow costs its own time, and the others wait once a period."""
    world = run(quadratic(), "local_sgd(period=4)", 2, steps=8, cluster=slowed(INSTANT, w1=3))
    assert world.outcome.seconds == pytest.approx(8 * 0.03)
    begins = sorted({round(wait.begin, 6) for wait in world.log.waits if wait.who.rank == 0})
    assert begins == [pytest.approx(0.04), pytest.approx(0.16)]


def test_a_period_of_0_is_refused() -> None:
    with pytest.raises(PlanError, match="every 1 step or more"):
        catalog.resolve("local_sgd(period=0)", 2)
