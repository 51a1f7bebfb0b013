"""What tells local SGD apart: workers drift for a period, then all hold the mean of all."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import pytest
import torch

import covey
from covey import catalog
from covey.decentral.averaging.local_sgd import Periods
from covey.errors import PlanError
from covey.exchange.collectives.sums import Chunk
from tests.worlds import CLUSTER, INSTANT, adam, middle, mlp, quadratic, run, sgd, slowed


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


def test_a_score_during_the_averaging_is_of_a_whole_model() -> None:
    """A model that stands still is the same whenever it is looked at, also while it is summed up in place."""
    task = replace(quadratic(lr=0.0), evaluate=lambda model: {"sum": model.w.detach().sum().item()})
    result = covey.fit(
        task, "local_sgd(period=2)", 3, engine="simulated", cluster=slowed(CLUSTER, w0=1.5), steps=6, scores=64
    )
    assert [row["sum"] for row in result.history] == pytest.approx([5.0] * len(result.history))


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


# -- periods ----------------------------------------------------------------------------------------------------------


def first(periods: Periods, count: int) -> list[int]:
    return list(islice(periods.ends(), count))


def test_growing_periods() -> None:
    """2, 3, 4.5 -> 4, 6.75 -> 7 steps long."""
    assert first(Periods(2, 1.5), 4) == [1, 4, 8, 15]
    assert first(Periods(1, 1.2), 6) == [0, 1, 2, 4, 6, 8]
    assert first(Periods(4), 3) == [3, 7, 11]
    assert first(Periods(4, after=10), 3) == [13, 17, 21]


def test_periods_grow_in_a_run() -> None:
    log = run(quadratic(), "local_sgd(period=2, growth=1.5)", 2, steps=10).log
    assert len(log.kinds(Chunk)) == 3 * 2 * 2


def test_before_the_switch_post_local_sgd_is_bsp_to_the_bit() -> None:
    """With Adam too, and when the last batches are short; replicas differ only after the switch."""
    task = mlp(adam(), samples=101)
    before = run(task, "local_sgd(period=4, after=9)", 3, steps=9)
    central = run(task, "allreduce", 3, steps=9)
    for mine, theirs in zip(before.workers(), central.workers(), strict=True):
        assert torch.equal(mine.flat.parts[0], theirs.flat.parts[0])
    apart = run(task, "local_sgd(period=4, after=9)", 3, steps=10).workers()
    assert not torch.equal(apart[0].flat.parts[0], apart[1].flat.parts[0])


def test_after_the_switch_there_are_fewer_allreduces() -> None:
    log = run(quadratic(), "local_sgd(period=4, after=5)", 2, steps=13).log
    assert len(log.kinds(Chunk)) == (5 + 2) * 2 * 2


# -- momentum ---------------------------------------------------------------------------------------------------------


def test_momentum_kept_reset_or_averaged_gives_three_trajectories() -> None:
    ends = [
        run(mlp(sgd(momentum=0.9)), f"local_sgd(period=2, momentum={how})", 3, steps=8).scored["0.weight"]
        for how in ("keep", "reset", "average")
    ]
    assert not any(torch.allclose(ends[i], ends[j], atol=1e-6) for i, j in ((0, 1), (0, 2), (1, 2)))


def test_averaged_momentum_travels_and_is_the_same_on_all() -> None:
    world = run(mlp(adam()), "local_sgd(period=2, momentum=average)", 3, steps=4)
    states = [list(replica.optimizer.state.values()) for replica in world.workers()]
    for other in states[1:]:
        for mine, theirs in zip(states[0], other, strict=True):
            assert all(torch.equal(mine[key], theirs[key]) for key in ("exp_avg", "exp_avg_sq", "step"))
    assert int(states[0][0]["step"]) == 4
    kept = run(mlp(adam()), "local_sgd(period=2)", 3, steps=4)
    assert sum(sent.size for sent in world.log.sends) > 2.9 * sum(sent.size for sent in kept.log.sends)


def test_reset_momentum_is_gone() -> None:
    for replica in run(mlp(sgd(momentum=0.9)), "local_sgd(period=2, momentum=reset)", 3, steps=4).workers():
        assert not replica.optimizer.state


@pytest.mark.parametrize("pattern", ["binomial", "halving", "hierarchical"])
def test_any_pattern_gives_the_same_mean(pattern: str) -> None:
    other = run(quadratic(), f"local_sgd(period=2, pattern={pattern})", 5, steps=6).workers()
    usual = run(quadratic(), "local_sgd(period=2)", 5, steps=6).workers()
    assert torch.allclose(other[0].flat.parts[0], usual[0].flat.parts[0], atol=1e-12)
    assert all(torch.equal(other[0].flat.parts[0], replica.flat.parts[0]) for replica in other)


@pytest.mark.parametrize("settings", ["growth=0.5", "after=-1"])
def test_what_cannot_work_is_refused(settings: str) -> None:
    with pytest.raises(PlanError):
        catalog.resolve(f"local_sgd({settings})", 2)


@pytest.mark.parametrize("spec", ["local_sgd(period=2)", "easgd(period=2)", "dpsgd over ring"])
def test_a_schedule_goes_by_the_samples_of_all_workers(spec: str) -> None:
    """Each worker steps by itself, and its rate falls as fast as if it saw what all of them see."""
    asked = list[float]()
    task = replace(quadratic(samples=96), rate=lambda progress: asked.append(progress) or 1.0)
    world = run(task, spec, 3, steps=8)
    workers = [replica for who, replica in world.replicas.items() if who.role == "worker"]
    assert all(replica.progress.seen == world.outcome.samples == 96 for replica in workers)
    assert sorted({round(8 * progress, 6) for progress in asked}) == list(range(8))
