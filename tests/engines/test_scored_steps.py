"""The score of a step is of the model that exactly these steps made, in virtual time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import covey
from covey.engines.virtual.run_scores import RunScores
from covey.engines.virtual.scored_states import ScoredStates
from covey.observe.referee import Row
from covey.simulate import from_flags
from tests.worlds import mlp, worker

SLOW = {"cluster": from_flags(slow=["2:4x"], jitter="0.2")}


def number(model: nn.Module) -> dict[str, float]:
    """One that no other weights have."""
    parts = [p.detach().double() * torch.arange(1, p.numel() + 1).view(p.shape) for p in model.parameters()]
    return {"number": float(sum(part.sum() for part in parts))}


def scored(strategy: str, steps: int, **given: Any) -> list[Row]:
    task = mlp(samples=120, evaluate=number)
    return covey.fit(task, strategy, 3, engine="simulated", steps=steps, **{**SLOW, **given}).history


@pytest.mark.parametrize("strategy", ["bsp", "allreduce", "dpsgd", "sliced"])
def test_a_score_is_of_exactly_its_step(strategy: str) -> None:
    rows = scored(strategy, 12, scores=4)
    assert len(rows) > 3
    for row in rows[1:]:
        step = int(row["samples"] or 0) // (3 * 8)
        assert row["number"] == scored(strategy, step)[-1]["number"], f"after {row['samples']} samples"


def role(rank: int, ended: bool, samples: int) -> Any:
    """A worker that has done all its steps, but for its farewell unless it has `ended`."""
    return SimpleNamespace(
        address=worker(rank), role=SimpleNamespace(trains=True), lost=False, ended=ended, settled=True,
        incarnation=SimpleNamespace(number=0), pace=SimpleNamespace(step=9, over=lambda step: True), samples=samples,
    )  # fmt: skip


@pytest.mark.parametrize("ended", [False, True])
def test_a_score_counts_what_was_done_up_to_its_step_and_waits_for_nobody_past_the_last(ended: bool) -> None:
    actors = {one.address: one for one in (role(0, False, samples=40), role(1, ended, samples=24))}
    judged = list[int]()
    teller: Any = SimpleNamespace(of=lambda who: actors[who])
    referee: Any = SimpleNamespace(next_step=2, passed=lambda step: None)
    states = ScoredStates(actors, [], teller, referee, lambda parts, samples: judged.append(samples))
    states._came = {worker(0): (16, None)}  # it has gone on since
    states.ended()
    assert judged == [16 + 24]


def test_those_past_their_last_step_are_not_the_foremost() -> None:
    paces = [SimpleNamespace(step=step, next=step + 1, over=lambda step: step >= 9, stop_at=None) for step in (3, 4, 9)]
    scores: Any = object.__new__(RunScores)
    scores.stopped, scores._lockstep = None, True
    trains = SimpleNamespace(trains=True)
    scores._actors = {number: SimpleNamespace(pace=pace, role=trains) for number, pace in enumerate(paces)}
    scores.stop("time")
    scores.stop("target")
    assert [pace.stop_at for pace in paces] == [5, 5, None] and scores.stopped == "time", "what came first"


def test_the_first_model_that_reached_the_target_is_kept() -> None:
    scores: Any = object.__new__(RunScores)
    scores.teller, scores._score, scores._best = SimpleNamespace(tallies={}, bytes=0), None, []
    scores._referee, scores._agenda = SimpleNamespace(judge=lambda *_: True), SimpleNamespace(now=1.0)
    for model in ("first", "second"):
        assert scores._judge([model], 8)
    assert scores.model() == ["first"]
