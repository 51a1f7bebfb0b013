"""`score_every`: scores after a number of steps, or after a time of training."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import pytest
from torch import nn

import covey
from covey.observe.referee import Referee
from covey.observe.scoring_steps import ScoringSteps
from tests.worlds import CLUSTER, mlp, sgd


def two(model: nn.Module) -> Mapping[str, float]:
    """Several metrics are scored as one is."""
    total = float(sum(p.detach().abs().sum() for p in model.parameters()))
    return {"size": total, "half": total / 2}


def history(strategy: str, engine: str = "simulated", **given: Any) -> list[Any]:
    more = {"cluster": CLUSTER} if engine == "simulated" else {}
    return covey.fit(
        mlp(sgd(), samples=96, evaluate=two), strategy, 2, engine=engine, runs=False, **more, **given
    ).history


@pytest.mark.parametrize("engine", ["simulated", "local"])
def test_in_step_the_scores_are_after_these_steps(engine: str) -> None:
    rows = history("bsp", engine, epochs=2, score_every="5 steps")
    assert [row["samples"] for row in rows] == [0, 80, 160, 192], "12 steps of 16 samples"
    assert all(row["half"] == row["size"] / 2 for row in rows)


def test_elsewhere_they_are_after_as_many_samples() -> None:
    rows = history("asynchronous", steps=12, score_every="5 steps")
    assert [row["samples"] // 16 for row in rows] == [0, 5, 10, 12]


@pytest.mark.parametrize("strategy", ["bsp", "asynchronous", "local_sgd"])
def test_by_the_clock_they_are_after_so_much_training_time(strategy: str) -> None:
    """A batch takes 10 ms."""
    rows = history(strategy, epochs=4, score_every="55ms")
    times = [row["seconds"] for row in rows]
    assert len(times) > 3
    assert all(0.055 <= later - before < 0.1 for before, later in pairwise(times[:-1]))


def test_processes_keep_to_the_clock() -> None:
    rows = history("bsp", "local", steps=400, score_every="20ms")
    times = [row["seconds"] for row in rows]
    assert len(times) > 2 and all(b - a >= 0.02 for a, b in pairwise(times[:-1]))


def test_a_resumed_run_counts_on() -> None:
    steps = ScoringSteps(each_pass=4, samples=101, scores=1, total=40, every=5)
    assert [steps.after(step) for step in (0, 4, 5, 36)] == [5, 5, 10, None]
    assert ScoringSteps(each_pass=4, samples=101, scores=1, total=40, every=5, skipped=3).after(0) == 2
    referee = Referee(every=10**9)
    referee.interval = 2.0
    assert not referee.due(5, 1.9) and referee.due(5, 2.0)
    referee.resume([{"seconds": 3.0, "samples": 7, "bytes": 0, "loss": 1.0}])
    assert not referee.due(9, 4.9) and referee.due(9, 5.0)
