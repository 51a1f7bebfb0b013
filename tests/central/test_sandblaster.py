"""Sandblaster: a coordinator of scalars, portions for whoever is idle, and every portion counted once."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from covey.central.lbfgs.sandblaster import COORDINATOR, Claim, Granted, Portion
from covey.central.lbfgs.vector_shards import Collect, PortionGradient, VectorCommand
from covey.message import vectors
from tests.worlds import INSTANT, mlp, paced, quadratic, run, slowed, worker


def test_the_coordinator_moves_only_scalars_and_commands() -> None:
    world = run(mlp(), "sandblaster", 3, servers=2, epochs=4)
    spoken = [e for e in world.log.sends if COORDINATOR in (e.sender, e.to)]
    assert {type(e.message) for e in spoken} >= {VectorCommand, Portion, Collect, Granted, Claim}
    assert not any(vectors(e.message) for e in spoken) and not any(e.size for e in spoken)


def test_a_portion_computed_twice_counts_once() -> None:
    """Worker 1 is 30 times slower: others compute its portions too, and the batch does not wait for it."""
    task = quadratic(samples=96)
    world = run(task, "sandblaster", 3, epochs=3, cluster=slowed(INSTANT, w1=30))
    given_out = Counter((s.message.batch, s.message.rank, s.message.step) for s in world.log.kinds(Portion))
    assert max(count for (_, rank, _), count in given_out.items() if rank >= 0) == 2
    granted = [s.message.yes for s in world.log.kinds(Granted)]
    assert granted.count(True) == len(world.log.kinds(PortionGradient)) == 3 * 24, "first results only"
    assert world.outcome.samples == 3 * 96
    done = [end for _, end, who in world.log.computes if who != worker(1)]
    assert max(done) < 3 * 0.3, "nobody waits for the slow one"


def test_a_portion_is_computed_by_two_workers_at_most() -> None:
    """Of 16 portions the slow worker has one and three others five each: they are idle at once, and one redoes it."""
    world = run(quadratic(samples=64), "sandblaster", 4, epochs=1, cluster=slowed(INSTANT, w3=30))
    given_out = Counter((s.message.rank, s.message.step) for s in world.log.kinds(Portion) if s.message.rank >= 0)
    assert sorted(given_out.values()) == [1] * 15 + [2]


def test_of_two_outstanding_portions_the_older_is_given_out_again_first() -> None:
    """When worker 0 is idle, at 90 ms, worker 1 has had its portion for 90 ms, and worker 2 its second for 10."""
    world = run(quadratic(samples=48), "sandblaster", 3, epochs=1, cluster=slowed(INSTANT, w1=30, w2=8))
    portions = [(s.to, s.message) for s in world.log.kinds(Portion) if isinstance(s.message, Portion)]
    given_out = [(to, (portion.rank, portion.step)) for to, portion in portions if portion.rank >= 0]
    (old,) = (portion for who, portion in given_out if who == worker(1))
    of_two = [portion for who, portion in given_out if who == worker(2)]
    assert given_out[-2:] == [(worker(0), old), (worker(0), of_two[-1])] and len(of_two) == 2


def test_the_first_batch_gradient_is_that_of_all_samples() -> None:
    """From w: one step of length min(1, 1 / |g|) down the exact gradient."""
    task = quadratic(samples=50)
    assert isinstance(task.data, tuple)
    world = run(task, "sandblaster", 3, epochs=1, cluster=slowed(w1=9), servers=2)
    grad = torch.ones(5).double() - task.data[0].mean(0)
    expected = 1 - grad * min(1.0, 1 / float(grad.norm()))
    assert torch.allclose(world.scored["w"], expected, atol=1e-12)


def test_lbfgs_finds_the_bottom_of_a_quadratic_at_once() -> None:
    task = quadratic(samples=40)
    assert isinstance(task.data, tuple)
    world = run(task, "sandblaster", 2, epochs=4)
    assert torch.allclose(world.scored["w"], task.data[0].mean(0), atol=1e-9)


def test_history_finds_the_bottom_of_a_narrow_valley() -> None:
    """Curvatures from 1 to 20: 12 moves along the gradient alone would still be far away."""
    task = quadratic(samples=40)
    assert isinstance(task.data, tuple)
    scale = torch.tensor([1.0, 2, 5, 10, 20], dtype=torch.float64)
    cloud = task.data[0]

    def loss(model: torch.nn.Module, batch: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return 0.5 * ((model.get_parameter("w") - batch[0]).square() * scale).sum(1).mean()

    bent = type(task)(model=task.model, data=task.data, optimizer=task.optimizer, step=loss, batch_size=4)
    ours = run(bent, "sandblaster", 2, epochs=12).scored["w"]
    assert torch.allclose(ours, cloud.mean(0), atol=1e-4)


@settings(max_examples=12, deadline=None)
@given(
    slow=st.lists(st.floats(0.2, 9.0), min_size=1, max_size=4), samples=st.integers(9, 50), servers=st.integers(1, 2),
    batch=st.sampled_from(["", "(batch=1)", "(batch=3)"]), seed=st.integers(0, 9),
)  # fmt: skip
def test_every_portion_counts_once_at_any_speeds(
    slow: list[float], samples: int, servers: int, batch: str, seed: int
) -> None:
    world = run(
        quadratic(samples=samples), f"sandblaster{batch}", len(slow), epochs=3, servers=servers, seed=seed,
        cluster=paced(slow, 0.4),
    )  # fmt: skip
    asked = sum(3 * world.deal.steps(rank) for rank in range(len(slow)))
    assert sum(s.message.yes for s in world.log.kinds(Granted)) == asked
    assert len(world.log.kinds(PortionGradient)) == asked * servers
    assert sum(s.message.pushes for s in world.log.kinds(Collect)) == asked * servers
    assert world.outcome.samples == 3 * samples


def test_settings() -> None:
    with pytest.raises(Exception, match="1 or more"):
        run(quadratic(), "sandblaster(history=0)", 2)
