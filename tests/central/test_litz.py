"""Litz: executors move between workers, and the outcome is that of a run in which each stays on a worker of its own."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from torch import nn

import covey
from covey.central.executors import micro_tasks
from covey.central.executors.micro_tasks import ExecutorServer, TaskGradient, placement
from covey.errors import PlanError
from covey.simulate import Cluster, Seconds
from tests.worlds import mlp, sgd

STEPS, SEATS = 10, 4
UNEVEN = Cluster(compute=Seconds(0.01), jitter=0.3)
MOVES = "leave worker 1@25ms; leave worker 3@31ms; join worker 1@90ms; leave worker 0@120ms; join worker 0@170ms"


def noisy() -> nn.Module:
    """Its dropout must not depend on who computes."""
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 3)).double()


def run(strategy: str, workers: int | str, **given: Any) -> covey.Result:
    usual: dict[str, Any] = {"cluster": UNEVEN, "steps": STEPS, "engine": "simulated", "runs": False}
    task = given.pop("task", None) or mlp(sgd(momentum=0.9), model=noisy, clip_norm=0.5)
    return covey.fit(task, strategy, workers, **{**usual, **given})


def same(one: covey.Result, other: covey.Result) -> bool:
    return all(torch.equal(one.weights[name], other.weights[name]) for name in other.weights)


@pytest.mark.parametrize("faults", [MOVES, "kill worker 2@33ms; leave worker 1@66ms", ""])
def test_executors_that_move_in_the_middle_of_an_epoch_change_no_bit(faults: str) -> None:
    moved, still = run("litz", f"1:{SEATS}", faults=faults or None), run("bsp", SEATS)
    assert same(moved, still)
    assert moved.samples == still.samples and moved.updates == still.updates
    assert not faults or moved.notes["moved executors"] > 0
    if faults:
        assert not same(run("bsp", f"1:{SEATS}", faults=faults), still), "ranges of bsp have smaller global batches"


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.full) for seed in range(2, 6))])
def test_whoever_comes_and_goes_no_bit_changes(seed: int) -> None:
    chance, plan = Random(seed), list[str]()
    for rank in range(1, SEATS):
        first, second, third = sorted(chance.uniform(1, 150) for _ in range(3))
        lost = chance.choice(["leave", "kill", "notice"])
        ends = {"notice": " for 15ms", "kill": f" for {chance.uniform(1, 30):.3f}ms", "leave": ""}[lost]
        plan.append(f"{lost} worker {rank}@{first:.3f}ms{ends}")
        later = f"leave worker {rank}@{second:.3f}ms" if lost == "kill" else f"join worker {rank}@{third + 20:.3f}ms"
        plan.append(later)
    assert same(run("litz", f"1:{SEATS}", faults="; ".join(plan)), run("bsp", SEATS))


def test_batch_norm_begins_each_batch_with_the_numbers_of_the_step() -> None:
    def normed() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)).double()

    task = mlp(sgd(), model=normed)
    moved, still = (run("litz", f"1:{SEATS}", task=task, faults=faults) for faults in (MOVES, None))
    floats = [name for name, value in still.weights.items() if value.is_floating_point()]
    assert all(torch.equal(moved.weights[name], still.weights[name]) for name in floats)


def test_a_machine_that_joins_gets_its_share_of_the_executors(monkeypatch: pytest.MonkeyPatch) -> None:
    for present in ({0}, {0, 3}, {0, 1, 5}, set(range(8))):
        loads = Counter(placement(present, 8).values())
        assert sum(loads.values()) == 8 and max(loads.values()) - min(loads.values()) <= 1
    found: list[tuple[int, int]] = []
    take = ExecutorServer.take

    async def noting(self: Any, result: TaskGradient) -> None:
        found.append((result.step, result.sender.rank))
        await take(self, result)

    monkeypatch.setattr(ExecutorServer, "take", noting)
    run("litz", f"1:{SEATS}", faults="leave worker 1@1ms; leave worker 2@1ms; leave worker 3@1ms; join worker 2@205ms")
    shares = [Counter(rank for step, rank in found if step == number) for number in range(STEPS)]
    assert shares[1] == {0: SEATS} and shares[-1] == {0: SEATS // 2, 2: SEATS // 2}
    assert all(earlier <= later for (earlier, _), (later, _) in pairwise(found)), "nobody is ahead of a step"


def test_a_run_goes_on_from_a_checkpoint_to_the_bit(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    run("litz", f"1:{SEATS}", checkpoint=kept, every="30ms", steps=6, faults="leave worker 1@25ms")
    longer = run("litz", f"1:{SEATS}", resume=kept, faults="leave worker 2@15ms")
    assert same(longer, run("bsp", SEATS)) and longer.samples == SEATS * STEPS * 8


def test_with_a_fixed_number_of_workers_it_is_bsp() -> None:
    assert same(run("litz", SEATS), run("bsp", SEATS))


@pytest.mark.parametrize(("strategy", "given"), [("litz + topk", {}), ("litz", {"servers": 2})])
def test_what_it_refuses(strategy: str, given: dict[str, Any]) -> None:
    with pytest.raises(PlanError):
        run(strategy, f"1:{SEATS}", **given)


def test_a_mean_in_the_order_of_arrival_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted mistake: the sum follows who was first."""
    monkeypatch.setattr(micro_tasks, "sorted", list, raising=False)
    with pytest.raises(AssertionError):
        assert same(run("litz", f"1:{SEATS}", faults=MOVES), run("bsp", SEATS))
