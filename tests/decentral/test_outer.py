"""What tells outer optimizers apart: the mean change of a block is one step of another optimizer, with momentum."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from covey import catalog
from covey.data.shards import Shards
from covey.decentral.averaging.outer import Block, block_momentum, fresh, nesterov_sgd
from covey.errors import PlanError
from covey.exchange.collectives.sums import Chunk
from covey.model.replica import Replica
from covey.task import Task
from covey.vector import Vector
from tests.worlds import Point, World, adam, middle, mlp, quadratic, run, sgd, vector, worker


def block() -> Block:
    return fresh(Replica(Point(2, torch.float64), sgd()))


def published(world: World, rank: int) -> Tensor:
    return world.workers()[rank].shown.model.parts[0]


def test_block_momentum_comes_to_the_sum_of_a_geometric_series() -> None:
    """A constant gain G of every block: the model moves by z G / (1 - m) a block; a plain mean moves it by G."""
    kept, gain = block(), vector(1.0, -2.0)
    for _ in range(200):
        block_momentum(kept, gain, momentum=0.75, rate=0.5, nesterov=False)
    assert torch.allclose(kept["momentum"].parts[0], torch.tensor([2.0, -4.0]).double())
    assert torch.equal(kept["start"].parts[0], kept["published"].parts[0])


def test_with_nesterov_a_block_starts_ahead_of_the_published_model() -> None:
    kept = block()
    block_momentum(kept, vector(1.0, 2.0), momentum=0.5, rate=1.0, nesterov=True)
    block_momentum(kept, vector(1.0, 2.0), momentum=0.5, rate=1.0, nesterov=True)
    assert kept["published"].parts[0].tolist() == [1 + 1 + 1.5, 1 + 2 + 3]
    ahead = kept["start"] - kept["published"]
    assert ahead.parts[0].tolist() == [0.5 * 1.5, 0.5 * 3]


def test_two_equal_changes_move_diloco_as_nesterov_sgd_moves() -> None:
    """rate (1 + mu) D, then rate (1 + mu + mu^2) D."""
    kept, rate, mu = block(), 0.7, 0.9
    nesterov_sgd(kept, vector(1.0, 0.0), momentum=mu, rate=rate)
    first = kept["published"].parts[0][0].item() - 1
    nesterov_sgd(kept, vector(1.0, 0.0), momentum=mu, rate=rate)
    second = kept["published"].parts[0][0].item() - 1 - first
    assert (first, second) == (pytest.approx(rate * (1 + mu)), pytest.approx(rate * (1 + mu + mu**2)))


def test_diloco_is_pytorchs_nesterov() -> None:
    kept, weight = block(), torch.nn.Parameter(torch.ones(2).double())
    outer = torch.optim.SGD([weight], lr=0.7, momentum=0.9, nesterov=True)
    for change in (vector(0.1, -0.3), vector(0.2, 0.2), vector(-0.4, 0.5)):
        weight.grad = -change.parts[0]
        outer.step()
        nesterov_sgd(kept, change, momentum=0.9, rate=0.7)
    assert torch.allclose(kept["published"].parts[0], weight.detach(), atol=1e-12)


@pytest.mark.parametrize("spec", ["bmuf(period=4, momentum=0)", "diloco(period=4, momentum=0, rate=1)"])
def test_without_momentum_it_is_the_plain_mean(spec: str) -> None:
    mean = run(quadratic(), "local_sgd(period=4)", 3, steps=12)
    assert torch.allclose(run(quadratic(), spec, 3, steps=12).scored["w"], mean.scored["w"], atol=1e-12)


def test_one_step_of_diloco_is_bsp() -> None:
    spec = "diloco(period=1, momentum=0, rate=1)"
    same = run(quadratic(), spec, 4, steps=9).scored["w"], run(quadratic(), "bsp", 4, steps=9).scored["w"]
    assert torch.allclose(*same, atol=1e-12)


def test_the_scored_model_is_published_and_not_where_the_block_started() -> None:
    world = run(quadratic(), "bmuf(period=3, nesterov=true)", 3, steps=6)
    first = world.replicas[next(iter(world.replicas))]
    assert torch.equal(world.scored["w"], published(world, 0))
    assert not torch.allclose(world.scored["w"], first.flat.parts[0], atol=1e-4), "the look-ahead"
    for rank in range(1, 3):
        assert torch.equal(published(world, rank), published(world, 0)), "all publish the same, to the bit"


@pytest.mark.parametrize("nesterov", [False, True])
def test_three_blocks_by_hand(nesterov: bool) -> None:
    """A block's change is counted from where it started, which with Nesterov is ahead of what was published."""
    task = quadratic(lr=0.1)
    spec = f"bmuf(period=2, momentum=0.5, rate=0.8, nesterov={str(nesterov).lower()})"
    world = run(task, spec, 2, steps=6)
    start = model = torch.ones(5).double()
    momentum = torch.zeros(5).double()
    for block in range(3):
        ends = []
        for rank in range(2):
            w = start
            for step in (2 * block, 2 * block + 1):
                w = w - 0.1 * (w - middle(task, world.deal, rank, step))
            ends.append(w)
        momentum = 0.5 * momentum + 0.8 * (torch.stack(ends).mean(0) - start)
        model = model + momentum
        start = model + 0.5 * momentum if nesterov else model
    assert torch.allclose(world.scored["w"], model, atol=1e-12)


def test_in_the_middle_of_a_block_the_published_model_stands() -> None:
    """And what a last block was cut short at still counts."""
    short, whole = (run(quadratic(), "diloco(period=5)", 2, steps=steps) for steps in (7, 5))
    assert not torch.equal(short.scored["w"], whole.scored["w"])
    assert len(short.log.kinds(Chunk)) == 2 * len(whole.log.kinds(Chunk))


def test_local_momentum_is_reset_by_bmuf_and_survives_in_diloco() -> None:
    """Adam counts its steps: after 8, in blocks of 4."""
    for spec, steps in (("bmuf(period=4)", 0), ("bmuf(period=4, reset=false)", 8), ("diloco(period=4)", 8)):
        for replica in run(mlp(adam()), spec, 2, steps=8).workers():
            counted = [int(state["step"]) for state in replica.optimizer.state.values()]
            assert set(counted) == ({steps} if steps else set())


def test_no_moments_travel() -> None:
    log = run(mlp(adam()), "diloco(period=4)", 2, steps=4).log
    assert sum(sent.size for sent in log.sends) == 2 * 8 * (6 * 8 + 8 + 8 * 3 + 3)


def test_a_worker_that_ends_earlier_takes_no_part_in_the_last_block() -> None:
    """9 samples for 2 workers in batches of 1: worker 0 has a fifth step, alone."""
    world = run(quadratic(samples=9, batch_size=1), "diloco(period=4, rate=1, momentum=0)", 2, epochs=1)
    assert torch.equal(world.scored["w"], published(world, 0))
    assert not torch.equal(published(world, 0), published(world, 1))


def test_momentum_follows_from_the_workers() -> None:
    assert catalog.resolve("bmuf", 8).text == "bmuf(period=8, momentum=0.875)"
    assert catalog.resolve("diloco", 8).text == "diloco(period=500, rate=0.7, momentum=0.9)"


@pytest.mark.parametrize(
    ("spec", "words"),
    [("bmuf(period=0)", "1 step"), ("bmuf(momentum=1)", "must lie in"), ("diloco(rate=0)", "more than 0")],
)
def test_what_cannot_work_is_refused(spec: str, words: str) -> None:
    with pytest.raises(PlanError, match=words):
        catalog.resolve(spec, 4)


def test_vectors_are_what_is_kept() -> None:
    assert all(isinstance(value, Vector) for value in block().values())


def alone_then_together(task: Task, deal: Shards, period: int, steps: list[int]) -> Tensor:
    """By hand: everybody steps alone; at the end of a period those who still train are put at the mean of those."""
    models = [torch.ones(5).double() for _ in steps]
    for step in range(max(steps)):
        present = [rank for rank, limit in enumerate(steps) if step < limit]
        for rank in present:
            models[rank] = models[rank] - 0.1 * (models[rank] - middle(task, deal, rank, step))
        if (step + 1) % period == 0 or step + 1 == max(steps):
            mean = torch.stack([models[rank] for rank in present]).mean(0)
            models = [mean if rank in present else model for rank, model in enumerate(models)]
    return models[0]


@pytest.mark.parametrize(
    ("spec", "period"),
    [
        ("local_sgd(period=2)", 2), ("local_sgd(period=2) + fp16", 2), ("bmuf(period=2, momentum=0)", 2),
        ("bmuf(period=5, momentum=0)", 5), ("diloco(period=2, momentum=0, rate=1)", 2),
        ("diloco(period=5, momentum=0, rate=1)", 5), ("diloco(period=2, momentum=0, rate=1) + fp16", 2),
    ],
)  # fmt: skip
def test_after_a_worker_has_ended_the_mean_is_over_those_that_are_left(spec: str, period: int) -> None:
    """11 samples for 3 workers in batches of 1: 4, 4 and 3 steps. The last block is of workers 0 and 1 alone.

    With a period of 5 worker 2 leaves in the middle of a block, which the others end without it.
    """
    task = quadratic(samples=11, batch_size=1)
    world = run(task, spec, 3, epochs=1)
    expected = alone_then_together(task, world.deal, period, [4, 4, 3])
    for rank in range(2):
        model = world.flat(worker(rank)) if spec.startswith("local_sgd") else published(world, rank)
        assert torch.allclose(model, expected, atol=1e-3 if "fp16" in spec else 1e-12)
