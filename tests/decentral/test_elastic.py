"""What tells EASGD apart: one force, measured before the gradient, moves worker and centre in opposite directions."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from covey import catalog
from covey.decentral.elastic import Centre, Elastic, Read
from covey.errors import PlanError
from covey.message import Address
from covey.replica import Replica
from tests.conftest import Golden
from tests.worlds import CLUSTER, INSTANT, MASTER, middle, paced, quadratic, run, slowed, spread, worker


def total(replicas: dict[Address, Replica]) -> Tensor:
    return torch.stack([replica.flat.parts[0] for replica in replicas.values()]).sum(0)


def test_one_exchange_by_hand() -> None:
    """w1 = w - lr g(w) - a (w - c) and c1 = c + a (w - c), with g at the weights before the pull."""
    task, pull, starts = quadratic(lr=0.5), 0.3, {}

    def before(replicas: dict[Address, Replica]) -> None:
        spread()(replicas)
        starts.update({who: replica.flat.parts[0].clone() for who, replica in replicas.items()})

    world = run(task, f"easgd(period=1, pull={pull})", 1, steps=1, before=before)
    w, c = starts[worker(0)], starts[MASTER]
    force = pull * (w - c)
    gradient = w - middle(task, world.deal, 0, 0)
    assert torch.allclose(world.flat(worker(0)), w - 0.5 * gradient - force, atol=1e-12)
    assert torch.allclose(world.flat(MASTER), c + force, atol=1e-12)
    assert torch.equal(world.scored["w"], world.flat(MASTER)), "the centre is scored"


@settings(max_examples=15, deadline=None)
@given(
    slow=st.lists(st.floats(0.2, 5.0), min_size=1, max_size=5), period=st.integers(1, 4), share=st.floats(0.05, 0.95),
    seed=st.integers(0, 50),
)  # fmt: skip
def test_exchanges_conserve_the_sum_of_workers_and_centre(
    slow: list[float], period: int, share: float, seed: int
) -> None:
    """Without a learning rate nothing but exchanges moves anything."""
    starts: list[Tensor] = []

    def before(replicas: dict[Address, Replica]) -> None:
        spread()(replicas)
        starts.append(total(replicas))

    pull = share * 2 / (len(slow) + 1)
    cluster = paced(slow, jitter=0.5)
    world = run(
        quadratic(lr=0.0), f"easgd(period={period}, pull={pull})", len(slow), steps=7, cluster=cluster, seed=seed,
        before=before,
    )  # fmt: skip
    assert torch.allclose(total(world.replicas), starts[0], atol=1e-12, rtol=0)
    assert len(world.log.kinds(Elastic)) == len(slow) * -(-7 // period)


def test_without_a_learning_rate_all_come_to_the_mean() -> None:
    starts: list[Tensor] = []

    def before(replicas: dict[Address, Replica]) -> None:
        spread()(replicas)
        starts.append(total(replicas) / len(replicas))

    world = run(quadratic(lr=0.0), "easgd(period=1)", 3, steps=60, before=before)
    for who in world.replicas:
        assert torch.allclose(world.flat(who), starts[0], atol=1e-6)


def test_with_almost_no_pull_workers_train_alone_and_the_centre_stays() -> None:
    world = run(quadratic(), "easgd(period=1, pull=1e-12)", 3, steps=10)
    alone = run(quadratic(), "local_sgd(period=1000)", 3, steps=10)
    assert torch.allclose(world.flat(MASTER), torch.ones(5).double(), atol=1e-9)
    for rank in range(3):
        assert torch.allclose(world.flat(worker(rank)), alone.flat(worker(rank)), atol=1e-9)


def test_nobody_waits_for_another_worker() -> None:
    world = run(quadratic(), "easgd(period=2)", 3, steps=8, cluster=slowed(INSTANT, w1=10))
    assert not world.log.waits or {wait.who for wait in world.log.waits} == {MASTER}
    assert [who.rank for who in world.log.ends if who.role == "worker"] == [0, 2, 1]


def test_an_exchange_at_step_0_and_every_period() -> None:
    log = run(quadratic(), "easgd(period=4)", 1, steps=9, cluster=INSTANT).log
    times = [pytest.approx(0.0), pytest.approx(0.04), pytest.approx(0.08)]
    assert [sent.at for sent in log.kinds(Read)] == times
    assert len(log.kinds(Centre)) == len(log.kinds(Elastic)) == 3


def test_pull_is_a_share_of_the_workers_unless_given() -> None:
    assert catalog.resolve("easgd", 4).text == "easgd(period=4, pull=0.225)"


@pytest.mark.parametrize("pull", ["0", "0.4", "-0.1"])
def test_a_pull_that_would_oscillate_is_refused(pull: str) -> None:
    with pytest.raises(PlanError, match="with 4 workers the pull must lie in \\(0, 0.400\\)"):
        catalog.resolve(f"easgd(pull={pull})", 4)


def test_picture(golden: Golden) -> None:
    task = quadratic(size=250, dtype=torch.float32)
    golden("easgd.txt", run(task, "easgd(period=2)", 2, steps=3, cluster=CLUSTER).trace)
