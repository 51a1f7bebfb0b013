"""The score of a step is of the model that exactly these steps made, in virtual time."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import covey
from covey.observe.referee import Row
from covey.simulate import from_flags
from tests.worlds import mlp

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
