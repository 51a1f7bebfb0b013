"""What tells SGP apart: on any directed graph the quotient x / y comes to the mean, and x alone does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from covey import catalog
from covey.decentral.gossip.push_sum import PushShare
from covey.errors import PlanError
from covey.message import Address
from covey.model.replica import Replica
from covey.topology import GRAPHS
from tests.worlds import CLUSTER, World, middle, paced, quadratic, run, slowed, spread

IRREGULAR = "0.5 0 0 0.5\n0.5 0.25 0 0\n0 0.75 0.5 0\n0 0 0.5 0.5\n"  # columns sum to 1, rows do not


def pushed(lr: float, workers: int, strategy: str, task: Any = None, **given: Any) -> tuple[World, list[Tensor]]:
    """A run from unequal weights, and those weights."""
    starts: list[Tensor] = []

    def before(replicas: dict[Address, Replica]) -> None:
        spread()(replicas)
        starts.extend(replica.flat.parts[0].clone() for replica in replicas.values())

    return run(task or quadratic(lr=lr), strategy, workers, before=before, **given), starts


def irregular(folder: Path) -> str:
    (folder / "weights.txt").write_text(IRREGULAR)
    return f'matrix(file="{folder / "weights.txt"}")'


def weighed(world: World) -> tuple[Tensor, float]:
    """The sum of all x, and of all y."""
    xs = [replica.flat.parts[0] * replica.shown.weight for replica in world.workers()]
    return torch.stack(xs).sum(0), sum(replica.shown.weight for replica in world.workers())


def test_on_an_irregular_graph_the_quotient_comes_to_the_mean_and_x_does_not(tmp_path: Path) -> None:
    world, starts = pushed(0.0, 4, f"sgp over {irregular(tmp_path)}", steps=120)
    mean = torch.stack(starts).mean(0)
    for replica in world.workers():
        assert torch.allclose(replica.flat.parts[0], mean, atol=1e-9)
        assert abs(replica.shown.weight - 1) > 0.01, "x = y z is elsewhere"
    assert weighed(world)[1] == pytest.approx(4)


@pytest.mark.parametrize("topology", ["one_peer_exponential", "halton", "ring", "complete"])
def test_on_a_regular_graph_all_weights_stay_one(topology: str) -> None:
    world, _ = pushed(0.1, 5, f"sgp over {topology}", steps=7)
    assert [replica.shown.weight for replica in world.workers()] == pytest.approx([1.0] * 5, abs=1e-12)


def test_three_steps_by_hand(tmp_path: Path) -> None:
    """Assran et al. 2019, Algorithm 1, with x and y as they stand there: the gradient is taken at z."""
    world, x = pushed(0.5, 4, f"sgp over {irregular(tmp_path)}", steps=3)
    y = [1.0] * 4
    given_by = torch.tensor([[float(word) for word in line.split()] for line in IRREGULAR.splitlines()]).double()
    for step in range(3):
        halves = [
            x[rank] - 0.5 * (x[rank] / y[rank] - middle(quadratic(), world.deal, rank, step)) for rank in range(4)
        ]
        x = list(given_by @ torch.stack(halves))
        y = (given_by @ torch.tensor(y).double()).tolist()
    for rank, replica in enumerate(world.workers()):
        assert torch.allclose(replica.flat.parts[0], x[rank] / y[rank], atol=1e-12)
        assert replica.shown.weight == pytest.approx(y[rank])


@settings(max_examples=20, deadline=None)
@given(
    slow=st.lists(st.floats(0.2, 8.0), min_size=1, max_size=6), overlap=st.integers(0, 3), seed=st.integers(0, 50),
    topology=st.sampled_from(["one_peer_exponential", "halton", "star", "exponential"]),
)  # fmt: skip
def test_without_a_learning_rate_nothing_is_lost(slow: list[float], overlap: int, seed: int, topology: str) -> None:
    strategy = f"sgp(overlap={overlap}) over {topology}"
    world, starts = pushed(0.0, len(slow), strategy, steps=8, cluster=paced(slow, jitter=0.5), seed=seed)
    x, y = weighed(world)
    assert y == pytest.approx(len(slow), abs=1e-9)
    assert torch.allclose(x, torch.stack(starts).sum(0), atol=1e-9, rtol=0)
    assert torch.allclose(world.scored["w"], torch.stack(starts).mean(0), atol=1e-9, rtol=0)


def test_those_who_remain_keep_what_they_would_give_to_those_who_ended() -> None:
    """13 samples, batches of 1, 3 workers: worker 0 has one step more."""
    task = quadratic(samples=13, batch_size=1, lr=0.0)
    world, starts = pushed(0.0, 3, "sgp", task=task, epochs=1)
    assert world.outcome.samples == 13
    assert weighed(world)[1] == pytest.approx(3)
    assert torch.allclose(world.scored["w"], torch.stack(starts).mean(0), atol=1e-12)


def test_one_push_a_step_along_the_graph_of_that_step() -> None:
    log = run(quadratic(), "sgp", 5, steps=6).log
    graph = GRAPHS["one_peer_exponential"](5)
    for sent in log.kinds(PushShare):
        assert isinstance(sent.message, PushShare)
        assert graph.at(sent.message.step).hearers(sent.sender.rank) == [sent.to.rank]
        assert sent.size == 5 * 8 + 8
    assert len(log.kinds(PushShare)) == 5 * 6


def test_with_overlap_a_share_may_be_late() -> None:
    """A share takes 9 ms and a batch 10: waiting for it doubles the time, one step of overlap hides it."""
    task = quadratic(size=1124)
    waiting = run(task, "sgp", 2, steps=10, cluster=CLUSTER)
    late = run(task, "sgp(overlap=1)", 2, steps=10, cluster=CLUSTER)
    assert waiting.outcome.seconds == pytest.approx(0.19, rel=0.01)
    assert late.outcome.seconds == pytest.approx(0.109, rel=0.01)


def test_nobody_gets_further_ahead_than_the_overlap_allows() -> None:
    log = run(quadratic(), "sgp(overlap=2)", 2, steps=12, cluster=slowed(w1=5)).log
    begun = sorted((begin, who.rank) for begin, _, who in log.computes)
    done = [0, 0]
    for _, rank in begun:
        done[rank] += 1
        assert done[0] - done[1] <= 2 + 1


def test_a_negative_overlap_is_refused() -> None:
    with pytest.raises(PlanError, match="overlap=-1"):
        catalog.resolve("sgp(overlap=-1)", 2)
