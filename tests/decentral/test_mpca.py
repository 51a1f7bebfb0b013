"""What tells MPCA-SGD apart: no step waits for the network, the penalty passes the optimizer, the centre moves on."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from covey import catalog
from covey.decentral.averaging.hops import MASTER, relatives
from covey.decentral.averaging.mpca import CentreView, Gathered, Meaned
from covey.errors import PlanError
from covey.message import Address
from covey.model.replica import Replica
from covey.simulate import BytesPerSecond, Link, Seconds
from tests.worlds import CLUSTER, INSTANT, Point, alone, mlp, paced, quadratic, run, sgd, spread, vector, worker


def view(centre: float, speed: float, step: int, formed: int) -> CentreView:
    kept = {"centre": vector(centre), "speed": vector(speed), "step": step, "formed": formed, "handed": formed}
    return CentreView(kept)


def penalty(of: CentreView, w: float, rho: float = 0.1, bound: int = 10) -> float:
    grad = vector(0.0)
    of.add_penalty(grad, vector(w), rho, bound)
    return grad.parts[0].item()


def test_the_penalty_by_hand() -> None:
    """rho (w - c - s v), with the sign that draws towards the centre."""
    assert penalty(view(2.0, 0.5, step=3, formed=0), w=5.0) == pytest.approx(0.1 * (5 - 2 - 3 * 0.5))


def test_the_centre_moves_between_two_receipts_and_not_beyond_the_bound() -> None:
    pulls = [penalty(view(0.0, 1.0, step=age, formed=0), w=0.0) for age in range(11)]
    assert pulls == [pytest.approx(-0.1 * age) for age in range(11)]
    older = penalty(view(0.0, 1.0, step=20, formed=0), w=0.0)
    assert older == pytest.approx(2 * -0.1 * 10), "harder, but no farther"
    ancient = penalty(view(0.0, 1.0, step=1000, formed=0), w=0.0)
    assert ancient == pytest.approx(10 * -0.1 * 10), "and never more than ten times as hard"


def test_a_new_centre_is_as_old_as_the_model_that_was_handed_over() -> None:
    known = view(1.0, 0.0, step=4, formed=0)
    known.hand_over()
    known.kept["step"] = 7
    known.take(vector(3.0))
    assert known.kept["speed"].parts[0].item() == pytest.approx((3 - 1) / 4)
    assert known.age == 3


def test_the_penalty_passes_the_optimizer() -> None:
    """After one step the momentum buffer is the whole gradient; EASGD's pull never shows there."""
    starts: dict[Address, torch.Tensor] = {}

    def before(replicas: dict[Address, Replica]) -> None:
        spread()(replicas)
        starts.update({who: replica.flat.parts[0].clone() for who, replica in replicas.items()})

    task = quadratic()
    task = replace(task, optimizer=sgd(momentum=0.9))
    # a worker takes its own first weights for the centre, so only the second step has a penalty
    far = run(task, "mpca(rho=0.5)", 2, steps=2, cluster=INSTANT, before=before)
    free = run(task, "mpca(rho=0)", 2, steps=2, cluster=INSTANT, before=before)
    for rank in range(2):
        states = [next(iter(world.workers()[rank].optimizer.state.values())) for world in (far, free)]
        assert not torch.allclose(states[0]["momentum_buffer"], states[1]["momentum_buffer"], atol=1e-6)


def test_without_rho_workers_train_alone() -> None:
    world = run(quadratic(), "mpca(rho=0)", 3, steps=10)
    apart = run(quadratic(), "local_sgd(period=1000)", 3, steps=10)
    for rank in range(3):
        assert torch.equal(world.flat(worker(rank)), apart.flat(worker(rank)))
    assert torch.allclose(world.scored["w"], apart.scored["w"], atol=1e-12), "at the end the centre is their mean"


def test_one_worker_without_rho_is_a_plain_loop() -> None:
    scored, plain = run(mlp(), "mpca(rho=0)", 1, steps=12).scored, alone(mlp(), 12, 8)
    assert all(torch.allclose(scored[name], plain[name], atol=1e-12) for name in plain)


@pytest.mark.parametrize("bandwidth", [1e6, 1e5, 100.0])
def test_no_step_waits_for_the_network(bandwidth: float) -> None:
    """At 100 bytes a second a model takes 0.4 s, or 40 steps, on each link."""
    cluster = replace(CLUSTER, link=Link(bandwidth=BytesPerSecond(bandwidth), latency=Seconds(0.0)))
    log = run(quadratic(), "mpca", 3, steps=100, cluster=cluster).log
    for rank in range(3):
        computes = [(begin, end) for begin, end, who in log.computes if who == worker(rank)]
        assert computes[-1][1] == pytest.approx(100 * 0.010)
    assert all(wait.begin >= 1.0 - 1e-9 for wait in log.waits if wait.who.role == "worker")


@settings(max_examples=12, deadline=None)
@given(slow=st.lists(st.floats(0.2, 5.0), min_size=1, max_size=6), seed=st.integers(0, 50))
def test_every_round_takes_one_model_up_and_one_down_each_link(slow: list[float], seed: int) -> None:
    world = run(quadratic(), "mpca", len(slow), steps=6, cluster=paced(slow, jitter=0.5), seed=seed)
    up = Counter(sent.sender for sent in world.log.kinds(Gathered))
    down = Counter(sent.to for sent in world.log.kinds(Meaned))
    assert up == down and len(up) == len(slow) and len(set(up.values())) == 1
    assert {sent.size for sent in world.log.sends} <= {0, 5 * 8}
    last = [sent.message for sent in world.log.kinds(Meaned)][-1]
    mean = torch.stack([replica.flat.parts[0] for replica in world.workers()]).mean(0)
    assert isinstance(last, Meaned) and last.last
    assert torch.allclose(world.flat(MASTER), mean, atol=1e-12), "the centre is the mean of what all ended at"


def test_the_tree_is_binomial() -> None:
    """The master and 6 workers: 0 <- 1, 2 <- 3, 4 <- 5, 6 of the group, so worker r is number r + 1."""
    parents = {rank: relatives(worker(rank), 6)[0] for rank in range(6)}
    assert parents == {0: MASTER, 1: MASTER, 2: worker(1), 3: MASTER, 4: worker(3), 5: worker(3)}
    assert relatives(MASTER, 6) == (None, [worker(0), worker(1), worker(3)])
    assert relatives(worker(3), 6)[1] == [worker(4), worker(5)]


def test_fresh_view_stands_still() -> None:
    replica = Replica(Point(1, torch.float64), sgd())
    assert penalty(CentreView(CentreView.fresh(replica)), w=1.0) == 0.0


@pytest.mark.parametrize("spec", ["mpca(rho=-1)", "mpca(bound=0)", "mpca(mix=0)", "mpca(mix=1.5)"])
def test_what_cannot_work_is_refused(spec: str) -> None:
    with pytest.raises(PlanError):
        catalog.resolve(spec, 4)
