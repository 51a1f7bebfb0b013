"""What tells D-PSGD apart: the gradient is taken before mixing, and mixing keeps the mean."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from covey import catalog
from covey.decentral.gossip.dpsgd import NeighbourModel
from covey.errors import PlanError
from covey.message import Address
from covey.model.replica import Replica
from covey.topology import GRAPHS
from tests.conftest import Golden
from tests.worlds import CLUSTER, INSTANT, World, middle, paced, quadratic, run, slowed, spread, worker

SYMMETRIC = ["ring", "complete", "chain", "star", "torus", "exponential"]


def spread_run(
    lr: float, workers: int, strategy: str = "dpsgd", steps: int = 1, slow: list[float] | None = None, seed: int = 0
) -> tuple[World, list[Tensor]]:
    """A run from unequal weights, and those weights."""
    starts: list[Tensor] = []

    def before(replicas: dict[Address, Replica]) -> None:
        spread()(replicas)
        starts.extend(replica.flat.parts[0].clone() for replica in replicas.values())

    cluster = paced(slow or [], jitter=0.5)
    world = run(quadratic(lr=lr), strategy, workers, steps=steps, cluster=cluster, before=before, seed=seed)
    return world, starts


@pytest.mark.parametrize("workers", [2, 3, 5])
def test_one_step_by_hand(workers: int) -> None:
    """w_i = the mean of oneself and the neighbours, minus lr times the gradient at the un-mixed w_i."""
    world, starts = spread_run(0.5, workers)
    for rank in range(workers):
        heard = {(rank - 1) % workers, rank, (rank + 1) % workers}
        mixed = torch.stack([starts[peer] for peer in heard]).mean(0)
        gradient = starts[rank] - middle(quadratic(), world.deal, rank, 0)
        assert torch.allclose(world.flat(worker(rank)), mixed - 0.5 * gradient, atol=1e-12)
        after_mixing = mixed - 0.5 * (mixed - middle(quadratic(), world.deal, rank, 0))
        assert not torch.allclose(world.flat(worker(rank)), after_mixing, atol=1e-3)


@pytest.mark.parametrize("topology", SYMMETRIC)
def test_the_mean_moves_by_the_mean_gradient(topology: str) -> None:
    """On any graph whose columns sum to 1."""
    world, starts = spread_run(0.5, 6, f"dpsgd over {topology}")
    gradients = [starts[rank] - middle(quadratic(), world.deal, rank, 0) for rank in range(6)]
    expected = torch.stack(starts).mean(0) - 0.5 * torch.stack(gradients).mean(0)
    assert torch.allclose(world.scored["w"], expected, atol=1e-12)


@settings(max_examples=20, deadline=None)
@given(
    workers=st.integers(1, 7), topology=st.sampled_from(SYMMETRIC), seed=st.integers(0, 50), data=st.data()
)  # fmt: skip
def test_without_a_learning_rate_the_mean_stays(workers: int, topology: str, seed: int, data: st.DataObject) -> None:
    slow = data.draw(st.lists(st.floats(0.2, 5.0), min_size=workers, max_size=workers))
    world, starts = spread_run(0.0, workers, f"dpsgd over {topology}", steps=6, slow=slow, seed=seed)
    assert torch.allclose(world.scored["w"], torch.stack(starts).mean(0), atol=1e-12, rtol=0)


def test_without_a_learning_rate_all_come_together_as_fast_as_the_graph_says() -> None:
    steps, workers = 10, 6
    world, starts = spread_run(0.0, workers, steps=steps)
    mean = torch.stack(starts).mean(0)

    def distance(models: list[Tensor]) -> float:
        return float(torch.stack([model - mean for model in models]).norm())

    ends = [world.flat(worker(rank)) for rank in range(workers)]
    shrink = (1 - GRAPHS["ring"](workers).gap()) ** steps
    assert 0 < distance(ends) <= shrink * distance(starts) * (1 + 1e-9)


def test_the_gradient_is_computed_while_the_shares_travel() -> None:
    """A share takes 1 ms and a batch 10: after the first step nobody waits."""
    world = run(quadratic(size=125), "dpsgd", 3, steps=4, cluster=CLUSTER)
    assert not world.log.waits
    assert world.outcome.seconds == pytest.approx(0.04)


def test_a_delay_spreads_one_hop_a_step() -> None:
    """Worker 0 is late: its neighbours wait in step 0, those next to them in step 1."""
    log = run(quadratic(), "dpsgd", 7, steps=3, cluster=slowed(INSTANT, w0=5)).log
    first = {rank: min(wait.begin for wait in log.waits if wait.who.rank == rank) for rank in range(1, 7)
             if any(wait.who.rank == rank for wait in log.waits)}  # fmt: skip
    assert {rank for rank, begin in first.items() if begin < 0.015} == set()  # shares leave before the gradient
    assert {rank for rank, begin in first.items() if 0.015 < begin < 0.025} == {1, 6}
    assert {rank for rank, begin in first.items() if 0.025 < begin < 0.035} == {2, 5}
    assert 3 not in first and 4 not in first


def test_only_neighbours_share_once_a_step() -> None:
    log = run(quadratic(), "dpsgd over ring", 5, steps=4).log
    assert {(sent.sender.rank, sent.to.rank) for sent in log.kinds(NeighbourModel)} == {
        (r, (r + hop) % 5) for r in range(5) for hop in (1, -1)
    }
    assert len(log.kinds(NeighbourModel)) == 4 * 5 * 2


def test_those_who_remain_keep_their_mean() -> None:
    """13 samples, batches of 1, 3 workers: worker 0 has one step more, and mixes with nobody in it."""
    starts: list[Tensor] = []

    def before(replicas: dict[Address, Replica]) -> None:
        spread()(replicas)
        starts.extend(replica.flat.parts[0].clone() for replica in replicas.values())

    world = run(quadratic(samples=13, batch_size=1, lr=0.0), "dpsgd", 3, epochs=1, before=before)
    assert world.outcome.samples == 13
    assert torch.allclose(world.scored["w"], torch.stack(starts).mean(0), atol=1e-12)


def test_an_unknown_graph_is_refused() -> None:
    with pytest.raises(PlanError, match="no topology 'rng'"):
        catalog.resolve("dpsgd over rng", 3)


def test_picture(golden: Golden) -> None:
    task = quadratic(size=250, dtype=torch.float32)
    golden("traces/dpsgd.txt", run(task, "dpsgd", 3, steps=2, cluster=slowed(w1=2)).trace)
