"""What tells SparkNet apart: models drift for a period, then a master that trains nothing gives all their mean."""

from __future__ import annotations

import pytest
import torch

from covey.decentral.averaging.sparknet import Averaged, Trained
from covey.servers.goodbye import Goodbye
from tests.worlds import MASTER, adam, mlp, quadratic, run, sgd, slowed, worker


def test_models_diverge_within_a_period_and_are_the_same_after_it() -> None:
    apart = [replica.flat.parts[0] for replica in run(quadratic(), "sparknet(period=3)", 3, steps=5).workers()]
    agreed = [replica.flat.parts[0] for replica in run(quadratic(), "sparknet(period=3)", 3, steps=6).workers()]
    assert not torch.equal(apart[0], apart[1])
    assert all(torch.equal(agreed[0], other) for other in agreed)


def test_only_models_travel_and_only_between_workers_and_master() -> None:
    log = run(quadratic(), "sparknet(period=3)", 3, steps=6).log
    assert {type(sent.message) for sent in log.sends} == {Trained, Averaged, Goodbye}
    assert all(MASTER in (sent.sender, sent.to) for sent in log.sends)
    assert len(log.kinds(Trained)) == len(log.kinds(Averaged)) == 2 * 3


@pytest.mark.parametrize("workers", [1, 4])
def test_it_is_local_sgd_through_a_master(workers: int) -> None:
    """Also when the last round is cut short."""
    for steps in (6, 8):
        spark, local = (run(mlp(), f"{name}(period=3)", workers, steps=steps) for name in ("sparknet", "local_sgd"))
        for name, tensor in local.scored.items():
            assert torch.allclose(spark.scored[name], tensor, atol=1e-12)


def test_a_period_of_1_is_bsp_with_plain_sgd() -> None:
    spark, bsp = (run(quadratic(), name, 4, steps=9).scored["w"] for name in ("sparknet(period=1)", "bsp"))
    assert torch.allclose(spark, bsp, atol=1e-12)


def test_what_becomes_of_momentum_gives_three_trajectories() -> None:
    ends = [
        run(mlp(sgd(momentum=0.9)), f"sparknet(period=2, momentum={momentum})", 3, steps=8).scored["0.weight"]
        for momentum in ("keep", "reset", "average")
    ]
    assert not any(torch.allclose(ends[i], ends[j], atol=1e-6) for i, j in ((0, 1), (0, 2), (1, 2)))


def test_averaged_momentum_is_the_same_on_all() -> None:
    states = [
        [state["exp_avg"] for state in replica.optimizer.state.values()]
        for replica in run(mlp(adam()), "sparknet(period=2, momentum=average)", 3, steps=4).workers()
    ]
    for other in states[1:]:
        assert all(torch.equal(mine, theirs) for mine, theirs in zip(states[0], other, strict=True))


def test_who_ends_in_a_round_gives_its_model_and_no_moments() -> None:
    """Worker 1 ends after 3 of 4 steps, so the mean of those that go on is what worker 0 has."""
    kept, mean = (
        run(mlp(adam(), samples=7, batch_size=1), f"sparknet(period=4, momentum={how})", 2, epochs=1).workers()[0]
        for how in ("keep", "average")
    )
    for one, other in zip(kept.optimizer.state.values(), mean.optimizer.state.values(), strict=True):
        assert torch.equal(one["exp_avg"], other["exp_avg"])


def test_who_ends_in_the_middle_of_a_round_counts_in_it() -> None:
    """7 samples for 2 workers in batches of 1: worker 1 ends after 3 steps, one step into the second round."""
    world = run(quadratic(samples=7, batch_size=1), "sparknet(period=2)", 2, epochs=1, cluster=slowed(w0=3))
    lasts = [sent.message.last for sent in world.log.kinds(Trained) if isinstance(sent.message, Trained)]
    assert sorted(lasts) == [0, 0, 0, 1]
    mean = torch.stack([replica.flat.parts[0] for replica in world.workers()])
    assert torch.allclose(world.flat(MASTER), mean[0], atol=1e-12), "worker 0 went on from the mean of both"
    assert len(world.log.kinds(Averaged)) == 3


def test_nobody_waits_for_the_model_of_one_who_ended_in_an_earlier_round() -> None:
    """Worker 1 has 3 steps, a round; worker 0 has one more, and the master its model of that."""
    world = run(quadratic(samples=7, batch_size=1), "sparknet(period=3)", 2, epochs=1)
    assert torch.equal(world.flat(MASTER), world.flat(worker(0)))
