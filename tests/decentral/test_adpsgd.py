"""What tells AD-PSGD apart: an old gradient moves weights that were averaged meanwhile, and nothing is lost."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from covey import catalog
from covey.decentral.gossip.adpsgd import HalfDifference, Meet
from covey.errors import PlanError
from covey.message import Address
from covey.model.replica import Replica
from covey.vector import Vector
from tests.worlds import CLUSTER, INSTANT, World, middle, paced, quadratic, run, slowed, spread, worker

GRAPHS = ["bipartite", "chain", "star", "tree"]


def watched(lr: float, workers: int, strategy: str = "adpsgd", **given: Any) -> tuple[World, Tensor, Tensor]:
    """A run from unequal weights, the sum of those, and the sum of all gradients that were applied."""
    starts: list[Tensor] = []
    grads: list[Tensor] = []
    apply = Replica.apply

    def before(replicas: dict[Address, Replica]) -> None:
        spread()(replicas)
        starts.extend(replica.flat.parts[0].clone() for replica in replicas.values())

    def applied(self: Replica, grad: Vector, scale: float = 1.0) -> None:
        grads.append(grad.parts[0].clone())
        apply(self, grad, scale)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Replica, "apply", applied)
        world = run(quadratic(lr=lr), strategy, workers, before=before, **given)
    return world, torch.stack(starts).sum(0), torch.stack(grads).sum(0)


def total(world: World) -> Tensor:
    return torch.stack([replica.flat.parts[0] for replica in world.workers()]).sum(0)


def test_an_old_gradient_moves_weights_that_were_averaged_meanwhile() -> None:
    """Worker 1 is asked while it computes: it ends at the average, minus its gradient at where it began."""
    starts: list[Tensor] = []

    def before(replicas: dict[Address, Replica]) -> None:
        spread()(replicas)
        starts.extend(replica.flat.parts[0].clone() for replica in replicas.values())

    world = run(quadratic(lr=0.5), "adpsgd", 2, steps=1, cluster=slowed(w1=3), before=before)
    mean = (starts[0] + starts[1]) / 2
    for rank in range(2):
        target = middle(quadratic(), world.deal, rank, 0)
        assert torch.allclose(world.flat(worker(rank)), mean - 0.5 * (starts[rank] - target), atol=1e-12)
        assert not torch.allclose(world.flat(worker(rank)), mean - 0.5 * (mean - target), atol=1e-3)
    assert world.log.values("staleness") == [1, 1]


speeds = st.lists(st.floats(0.2, 8.0), min_size=1, max_size=6)


@settings(max_examples=20, deadline=None)
@given(slow=speeds, topology=st.sampled_from(GRAPHS), seed=st.integers(0, 50), lr=st.sampled_from([0.0, 0.1]))
def test_no_gradient_and_no_average_is_lost(slow: list[float], topology: str, seed: int, lr: float) -> None:
    """Wherever they land between each other: the sum of all weights moves by the gradients, and by nothing else."""
    cluster = paced(slow, jitter=0.5)
    world, start, grads = watched(lr, len(slow), f"adpsgd over {topology}", steps=9, cluster=cluster, seed=seed)
    assert torch.allclose(total(world), start - lr * grads, atol=1e-10, rtol=0)


@pytest.mark.parametrize("codec", ["topk(density=0.4)", "int8"])
def test_nor_where_halves_are_compressed(codec: str) -> None:
    """Both go by what travelled: what a codec drops of it is missing on both sides."""
    world, start, grads = watched(0.1, 2, f"adpsgd + {codec}", steps=9, cluster=slowed(w1=2))
    assert torch.allclose(total(world), start - 0.1 * grads, atol=1e-10, rtol=0)


def test_without_a_learning_rate_all_come_to_the_mean() -> None:
    world, start, _ = watched(0.0, 4, steps=150)
    for replica in world.workers():
        assert torch.allclose(replica.flat.parts[0], start / 4, atol=1e-6)


@pytest.mark.parametrize("workers", [3, 5, 7])
def test_odd_rings_are_refused(workers: int) -> None:
    with pytest.raises(PlanError, match="odd length.*even number of workers"):
        catalog.resolve("adpsgd over ring", workers)
    assert catalog.resolve("adpsgd over ring", workers + 1).composition.over == "ring"


def test_one_side_asks_and_the_other_answers() -> None:
    log = run(quadratic(), "adpsgd", 5, steps=8).log
    asked = {(sent.sender.rank, sent.to.rank) for sent in log.kinds(Meet)}
    assert len(asked) > 4 and all(one % 2 == 0 and other % 2 == 1 for one, other in asked)
    assert len(log.kinds(Meet)) == len(log.kinds(HalfDifference)) == 3 * 8
    assert {(sent.to.rank, sent.sender.rank) for sent in log.kinds(HalfDifference)} == asked


def test_nobody_waits_for_a_slow_worker() -> None:
    world = run(quadratic(), "adpsgd", 4, steps=8, cluster=slowed(INSTANT, w1=10))
    ends = {rank: max(end for _, end, who in world.log.computes if who.rank == rank) for rank in range(4)}
    assert [ends[rank] for rank in (0, 2, 3)] == pytest.approx([0.08] * 3)
    assert all(wait.begin >= ends[wait.who.rank] - 1e-9 for wait in world.log.waits)


def test_on_a_slow_network_meetings_get_fewer_and_steps_do_not_wait() -> None:
    """A model takes 26 ms each way, a step 10: every sixth step has a meeting."""
    world = run(quadratic(size=3250), "adpsgd", 2, steps=12, cluster=CLUSTER)
    assert len(world.log.kinds(Meet)) == 2
    assert max(end for _, end, _ in world.log.computes) == pytest.approx(0.12)


def test_the_weights_of_the_forward_are_those_of_the_backward() -> None:
    """Averages are written while backward may run: it works on a copy."""
    world = run(quadratic(), "adpsgd", 2, steps=2)
    for replica in world.workers():
        parameter = next(replica.module.parameters())
        assert parameter.data_ptr() != replica.flat.parts[0].data_ptr()
