"""What tells all-reduce apart: no server, neighbours only, and a whole optimizer on every worker."""

from __future__ import annotations

import pytest
import torch

from covey.exchange.collectives import Chunk
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
