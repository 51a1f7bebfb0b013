"""What tells EASGD apart: one force, measured before the gradient, moves worker and centre in opposite directions."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from covey import catalog
from covey.decentral.elastic.easgd import Centre, Elastic, ReadCentre, Trend
from covey.errors import PlanError
from covey.message import Address
from covey.model.replica import Replica
from tests.conftest import Golden
from tests.worlds import CLUSTER, INSTANT, MASTER, World, middle, paced, quadratic, run, slowed, spread, worker


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
    assert [sent.at for sent in log.kinds(ReadCentre)] == times
    assert len(log.kinds(Centre)) == len(log.kinds(Elastic)) == 3


def test_pull_is_a_share_of_the_workers_unless_given() -> None:
    assert catalog.resolve("easgd", 4).text == "easgd(period=4, pull=0.225)"


@pytest.mark.parametrize("pull", ["0", "0.4", "-0.1"])
def test_a_pull_that_would_oscillate_is_refused(pull: str) -> None:
    with pytest.raises(PlanError, match="with 4 workers the pull must lie in \\(0, 0.400\\)"):
        catalog.resolve(f"easgd(pull={pull})", 4)


def test_picture(golden: Golden) -> None:
    task = quadratic(size=250, dtype=torch.float32)
    golden("traces/easgd.txt", run(task, "easgd(period=2)", 2, steps=3, cluster=CLUSTER).trace)


# -- in order ---------------------------------------------------------------------------------------------------------


def one_round(mode: str) -> tuple[dict[Address, Tensor], World]:
    starts: dict[Address, Tensor] = {}

    def before(replicas: dict[Address, Replica]) -> None:
        spread()(replicas)
        starts.update({who: replica.flat.parts[0].clone() for who, replica in replicas.items()})

    spec = f"easgd(period=1, pull=0.3, mode={mode})"
    return starts, run(quadratic(lr=0.0), spec, 2, steps=1, cluster=slowed(w0=3), before=before)


def test_synchronous_workers_meet_the_same_centre() -> None:
    """c1 = c + 0.3 sum (w - c), which is (1 - b) c + b mean(w) with b = 2 * 0.3."""
    starts, world = one_round("synchronous")
    c, mean = starts[MASTER], (starts[worker(0)] + starts[worker(1)]) / 2
    assert torch.allclose(world.flat(MASTER), 0.4 * c + 0.6 * mean, atol=1e-12)
    for rank in range(2):
        w = starts[worker(rank)]
        assert torch.allclose(world.flat(worker(rank)), w - 0.3 * (w - c), atol=1e-12)


def test_in_round_robin_the_second_meets_what_the_first_has_moved() -> None:
    starts, world = one_round("round_robin")
    c = starts[MASTER] + 0.3 * (starts[worker(0)] - starts[MASTER])
    second = starts[worker(1)]
    assert torch.allclose(world.flat(worker(1)), second - 0.3 * (second - c), atol=1e-12)
    assert torch.allclose(world.flat(MASTER), c + 0.3 * (second - c), atol=1e-12)


@pytest.mark.parametrize("mode", ["synchronous", "round_robin"])
@settings(max_examples=8, deadline=None)
@given(slow=st.lists(st.floats(0.2, 5.0), min_size=1, max_size=5), period=st.integers(1, 4), samples=st.integers(9, 40))
def test_in_order_too_the_sum_is_conserved(mode: str, slow: list[float], period: int, samples: int) -> None:
    """However unequal the shares of the data are."""
    starts: list[Tensor] = []

    def before(replicas: dict[Address, Replica]) -> None:
        spread()(replicas)
        starts.append(total(replicas))

    world = run(
        quadratic(lr=0.0, samples=samples), f"easgd(period={period}, mode={mode})", len(slow), epochs=2,
        cluster=paced(slow, jitter=0.5), before=before,
    )  # fmt: skip
    assert torch.allclose(total(world.replicas), starts[0], atol=1e-12, rtol=0)


@pytest.mark.parametrize("mode", ["synchronous", "round_robin"])
def test_in_order_the_speed_of_workers_makes_no_difference(mode: str) -> None:
    spec = f"easgd(period=2, mode={mode})"
    even, uneven = (run(quadratic(), spec, 3, steps=9, cluster=c).scored["w"] for c in (CLUSTER, slowed(w0=7, w2=3)))
    assert torch.equal(even, uneven)


# -- momentum ---------------------------------------------------------------------------------------------------------


def test_the_gradient_is_taken_ahead_and_the_force_has_no_momentum() -> None:
    """EAMSGD: v = m v; w += v; g at w; the step of the optimizer moves both; then the force moves w alone."""
    task, pull, m, lr = quadratic(lr=0.5), 0.3, 0.8, 0.5 * (1 - 0.8)
    starts: dict[Address, Tensor] = {}

    def before(replicas: dict[Address, Replica]) -> None:
        spread()(replicas)
        starts.update({who: replica.flat.parts[0].clone() for who, replica in replicas.items()})

    world = run(task, f"easgd(period=2, pull={pull}, momentum={m})", 1, steps=3, before=before)
    w, c, v = starts[worker(0)], starts[MASTER], torch.zeros(5).double()
    for step in range(3):
        force = pull * (w - c) if step % 2 == 0 else torch.zeros(5).double()
        c, v = c + force, m * v
        ahead = w + v
        move = -lr * (ahead - middle(task, world.deal, 0, step))
        w, v = ahead + move - force, v + move
    assert torch.allclose(world.flat(worker(0)), w, atol=1e-12)
    assert torch.allclose(world.flat(MASTER), c, atol=1e-12)


def test_eamsgd_is_easgd_with_momentum() -> None:
    assert catalog.resolve("eamsgd", 4).text == "eamsgd(period=4, pull=0.225, momentum=0.99)"
    one, other = (run(quadratic(), spec, 2, steps=9).scored["w"] for spec in ("eamsgd(momentum=0)", "easgd"))
    assert torch.equal(one, other)
    one, other = (run(quadratic(), spec, 2, steps=9).scored["w"] for spec in ("eamsgd", "easgd(momentum=0.99)"))
    assert torch.equal(one, other)
    with pytest.raises(PlanError, match="momentum"):
        catalog.resolve("easgd(momentum=1)", 4)


# -- the loss trend ---------------------------------------------------------------------------------------------------


def test_the_pull_rises_while_the_loss_stalls() -> None:
    trend = Trend([0.2, 0.0, 0.0, 0.0], 0.2, ceiling=0.25)
    pulls = []
    for loss in (4.0, 2.0, 2.0, 2.1, 2.1, 1.0, 1.0):
        pulls.append(trend.pull())
        trend.add(loss)
        trend.add(loss)
    assert [*pulls, trend.pull()] == [pytest.approx(p) for p in (0.2, 0.2, 0.2, 0.22, 0.242, 0.25, 0.2, 0.22)]


def test_a_pull_that_begins_above_the_ceiling_stays_there() -> None:
    trend = Trend([0.3, 0.0, 0.0, 0.0], 0.3, ceiling=0.25)
    for _ in range(3):
        trend.add(2.0)
        assert trend.pull() == 0.3


def test_an_adapted_pull_changes_the_run_and_still_conserves_the_sum() -> None:
    starts: list[Tensor] = []

    def before(replicas: dict[Address, Replica]) -> None:
        spread()(replicas)
        starts.append(total(replicas))

    world = run(quadratic(lr=0.0), "easgd(period=1, adapt=true)", 3, steps=9, before=before)
    assert torch.allclose(total(world.replicas), starts[0], atol=1e-12, rtol=0)
    plain = run(quadratic(lr=0.0), "easgd(period=1)", 3, steps=9, before=spread())
    assert not torch.allclose(world.flat(MASTER), plain.flat(MASTER), atol=1e-9)
