"""What tells CROSSBOW apart: several learners on a worker, and a central model that has momentum of its own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from covey import catalog
from covey.decentral.averaging.crossbow import WINDOW
from covey.errors import PlanError
from covey.exchange.collectives.sums import Chunk
from covey.program import Memory
from covey.simulate import BytesPerSecond, Cluster, Link, Seconds
from covey.task import Task
from tests.decentral.test_compression import left_over, slopes
from tests.worlds import World, cloud, middle, mlp, quadratic, run


@pytest.fixture
def memories(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What the workers remember, in the order of their ranks."""
    found: list[dict[str, Any]] = []
    ordinary = Memory.__init__

    def init(self: Memory[Any], value: Any) -> None:
        found.append(value)
        ordinary(self, value)

    monkeypatch.setattr(Memory, "__init__", init)
    return found


def models(kept: list[dict[str, Any]]) -> list[Tensor]:
    return [learner["model"].parts[0] for worker in kept for learner in worker["learners"]]


def by_hand(task: Task, world: World, learners: int, rounds: int, pull: float, momentum: float) -> Tensor:
    """z after so many rounds of 2 workers, straight from the formula."""
    w = [torch.ones(5).double() for _ in range(2 * learners)]
    z = before = torch.ones(5).double()
    for turn in range(rounds):
        forces = [pull * (x - z) for x in w]
        for k in range(2 * learners):
            rank, learner = divmod(k, learners)
            gradient = w[k] - middle(task, world.deal, rank, turn * learners + learner)
            w[k] = w[k] - 0.5 * gradient - forces[k]
        z, before = z + torch.stack(forces).sum(0) + momentum * (z - before), z
    return z


@pytest.mark.parametrize(("learners", "momentum"), [(1, 0.0), (1, 0.9), (2, 0.9), (3, 0.5)])
def test_the_central_model_by_hand(learners: int, momentum: float) -> None:
    task, pull = quadratic(lr=0.5), 0.2
    spec = f"crossbow(learners={learners}, pull={pull}, momentum={momentum})"
    world = run(task, spec, 2, steps=4 * learners)
    assert torch.allclose(world.scored["w"], by_hand(task, world, learners, 4, pull, momentum), atol=1e-12)


def test_without_momentum_it_is_synchronous_easgd() -> None:
    crossbow = run(quadratic(), "crossbow(learners=1, pull=0.2, momentum=0)", 4, steps=10)
    easgd = run(quadratic(), "easgd(period=1, pull=0.2, mode=synchronous)", 4, steps=10)
    assert torch.allclose(crossbow.scored["w"], easgd.scored["w"], atol=1e-12)


@pytest.mark.parametrize("codec", ["", " + topk(density=0.1)", " + int8"])
def test_what_learners_lose_the_centre_gains(codec: str, memories: list[dict[str, Any]]) -> None:
    """What a codec leaves out of their forces they take back, so nothing is lost and nothing need be carried on."""
    world = run(slopes(), "crossbow(momentum=0)" + codec, 2, steps=6)
    kept = [memory for memory in memories if isinstance(memory, dict) and "learners" in memory]
    centres = [one["centre"].parts[0] for one in kept]
    assert len(centres) == 2 and torch.equal(*centres)
    assert left_over(world, torch.stack([*models(kept), centres[0]]).sum(0), 5, 2) < 1e-9


def test_learners_differ_and_centres_do_not(memories: list[dict[str, Any]]) -> None:
    run(quadratic(), "crossbow(learners=2)", 2, steps=8)
    found = models(memories)
    assert len(found) == 4
    assert not any(torch.equal(found[i], found[j]) for i in range(4) for j in range(i))
    assert torch.equal(memories[0]["centre"].parts[0], memories[1]["centre"].parts[0])


def test_one_allreduce_a_round_or_every_few() -> None:
    for spec, times in (("learners=3", 4), ("learners=3, period=2", 2), ("learners=1", 12)):
        log = run(quadratic(), f"crossbow({spec})", 2, steps=12).log
        assert len(log.kinds(Chunk)) == times * 2 * 2


def test_when_the_learning_rate_jumps_all_begin_again_at_the_centre(memories: list[dict[str, Any]]) -> None:
    task = mlp(samples=64, rate=lambda progress: 1.0 if progress < 0.5 else 0.1)
    run(task, "crossbow(learners=1)", 2, steps=4)  # 64 samples in 4 steps: the jump is after the second
    centre, before = memories[0]["centre"].parts[0].clone(), memories[0]["before"].parts[0]
    assert not torch.equal(centre, before)
    memories.clear()
    task = mlp(samples=64, rate=lambda progress: 1.0 if progress < 0.99 else 0.1)
    run(task, "crossbow(learners=1)", 2, steps=4)  # it jumps after the last step, when the last round is averaged
    centre = memories[0]["centre"].parts[0]
    assert all(torch.equal(model, centre) for model in models(memories))
    assert torch.equal(memories[0]["before"].parts[0], centre), "and its momentum is gone"


def test_a_smooth_schedule_never_restarts(memories: list[dict[str, Any]]) -> None:
    run(mlp(samples=64, rate=lambda progress: 1.0 - progress / 2), "crossbow(learners=1)", 2, steps=8)
    assert not torch.equal(*models(memories))


@pytest.mark.parametrize(("bandwidth", "grows"), [(1e4, True), (1e12, False)])
def test_the_tuner_adds_learners_while_throughput_grows(
    memories: list[dict[str, Any]], bandwidth: float, grows: bool
) -> None:
    """A round is m batches of 10 ms and an all-reduce of c: m / (10 m + c) grows with m, but less and less."""
    link = Link(bandwidth=BytesPerSecond(bandwidth), latency=Seconds(0.0))
    cluster = Cluster(compute=Seconds(0.010), link=link)
    run(quadratic(size=100, samples=4000), "crossbow(tune=true)", 2, steps=600, cluster=cluster)
    counts = [len(kept["learners"]) for kept in memories]
    assert counts[0] == counts[1], "all decide alike"
    assert memories[0]["tuning"]["rounds"] == -1, "it has settled"
    if not grows:
        assert counts[0] == 1
        return
    cost = 2 * (1 * 50 * 8 + 8) / bandwidth
    speeds = [m / (0.010 * m + cost) for m in range(1, 20)]
    best = next(m for m in range(1, 19) if speeds[m] < 1.05 * speeds[m - 1])
    assert abs(counts[0] - best) <= 1 and counts[0] > 1
    assert WINDOW == 10


@pytest.mark.parametrize("settings", ["learners=0", "period=0", "pull=0.5", "momentum=1", "tune=true, pull=0.1"])
def test_what_cannot_work_is_refused(settings: str) -> None:
    with pytest.raises(PlanError):
        catalog.resolve(f"crossbow({settings})", 4)


def test_text() -> None:
    assert catalog.resolve("crossbow", 4).text == "crossbow(learners=2, pull=0.125)"
    assert catalog.resolve("crossbow(tune=true)", 4).text == "crossbow(learners=1, tune=true)"


def test_statistics_follow_without_the_centres_momentum() -> None:
    """By hand, of the only batch that there is: a learner goes a tenth of the way, and half of that back."""
    data = (cloud(16)[0] + 5, cloud(16)[1])
    model = lambda: nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 3)).double()  # noqa: E731
    world = run(mlp(model=model, data=data, batch_size=16), "crossbow(learners=2)", 1, steps=8)
    learners, centre = [torch.zeros(6).double()] * 2, torch.zeros(6).double()
    for _ in range(4):
        seen = [0.9 * mean + 0.1 * data[0].mean(0) for mean in learners]
        forces = [0.5 * (mean - centre) for mean in seen]
        learners = [mean - force for mean, force in zip(seen, forces, strict=True)]
        centre = centre + forces[0] + forces[1]
    assert torch.allclose(world.scored["0.running_mean"], centre, atol=1e-12)
