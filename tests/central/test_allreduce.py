"""What tells all-reduce apart: no server, neighbours only, and a whole optimizer on every worker."""

from __future__ import annotations

import pytest
import torch

from covey import catalog
from covey.errors import PlanError
from covey.exchange.collectives.by_name import PATTERNS
from covey.exchange.collectives.sums import Chunk
from tests.worlds import INSTANT, adam, mlp, run, slowed, worker


def test_every_worker_holds_the_whole_optimizer_and_the_same_bits() -> None:
    first, *others = run(mlp(adam()), "allreduce", 4, steps=12).workers()
    for other in others:
        assert torch.equal(first.flat.parts[0], other.flat.parts[0])
        for mine, theirs in zip(first.optimizer.state.values(), other.optimizer.state.values(), strict=True):
            assert all(torch.equal(mine[key], theirs[key]) for key in ("exp_avg", "exp_avg_sq", "step"))


def test_there_is_no_server_and_only_neighbours_speak() -> None:
    world = run(mlp(), "allreduce", 4, steps=3)
    assert {who.role for who in world.replicas} == {"worker"}
    assert {type(sent.message) for sent in world.log.sends} == {Chunk}
    assert {(sent.sender.rank, sent.to.rank) for sent in world.log.sends} == {(0, 1), (1, 2), (2, 3), (3, 0)}
    assert len(world.log.sends) == 3 * 4 * 2 * 3


def test_all_wait_for_the_slowest_and_the_weights_do_not_change() -> None:
    even = run(mlp(), "allreduce", 4, steps=5, cluster=INSTANT)
    late = run(mlp(), "allreduce", 4, steps=5, cluster=slowed(INSTANT, w3=10))
    assert late.outcome.seconds == pytest.approx(10 * even.outcome.seconds)
    assert all(torch.equal(even.scored[name], late.scored[name]) for name in even.scored)


def test_one_update_a_step_is_noted_by_one_worker() -> None:
    log = run(mlp(), "allreduce", 4, steps=5).log
    assert log.values("update") == [1] * 5
    assert log.values("update", worker(0)) == [1] * 5
    assert log.values("staleness") == [0] * 5


def test_those_who_still_train_go_on_without_the_others() -> None:
    """97 samples: in its fourth step worker 0 is alone, and speaks to nobody."""
    log = run(mlp(samples=97), "allreduce", 4, epochs=1).log
    assert len(log.sends) == 3 * 4 * 2 * 3
    assert log.values("update") == [1] * 4


@pytest.mark.parametrize("pattern", [name for name in PATTERNS if name != "ring"])
def test_any_pattern_of_the_sum_ends_at_the_same_weights(pattern: str) -> None:
    """5 workers: no power of two, no whole number of machines; all hold the same bits."""
    usual = run(mlp(), "allreduce", 5, steps=4)
    other = run(mlp(), f"allreduce(pattern={pattern})", 5, steps=4)
    assert all(torch.allclose(usual.scored[name], other.scored[name], atol=1e-12) for name in usual.scored)
    first, *rest = other.workers()
    assert all(torch.equal(first.flat.parts[0], replica.flat.parts[0]) for replica in rest)


def test_the_pattern_is_told() -> None:
    assert catalog.resolve("allreduce(pattern=halving)", 4).taxonomy.topology == "hypercube"
    text = "allreduce(pattern=hierarchical, local=3)"
    assert catalog.resolve(text, 6).text == text and catalog.resolve("allreduce", 6).text == "allreduce"
    with pytest.raises(PlanError, match="1 worker or more"):
        catalog.resolve("allreduce(local=-1)", 4)
