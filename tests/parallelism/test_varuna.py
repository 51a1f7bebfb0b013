"""Varuna's layout: neighbours are stages, pipelines sum their gradients, and the batch of all does not depend on it."""

from __future__ import annotations

from typing import Any

import pytest

import covey
from covey.observe.result import Result
from tests.worlds import mlp


def trained(spec: str, workers: int, batch_size: int, **more: Any) -> Result:
    task = mlp(samples=64, batch_size=batch_size)
    return covey.fit(task, spec, workers, engine="simulated", runs=False, **{"epochs": 3, **more})


def apart(one: Result, other: Result) -> float:
    return max(float((one.weights[name] - other.weights[name]).abs().max()) for name in one.weights)


@pytest.mark.parametrize(
    ("spec", "workers", "batch"),
    [
        ("varuna with mesh(replica=1, microbatches=8)", 2, 16),
        ("varuna with mesh(replica=4, microbatches=2)", 8, 4),
        ("allreduce", 2, 8),
    ],
)
def test_the_number_of_pipelines_does_not_change_what_is_learned(spec: str, workers: int, batch: int) -> None:
    """Micro-batches of 2 samples, and 16 in the batch of all pipelines together."""
    here = trained("varuna", 4, 8)
    assert "replica=2, stage=2" in here.strategy and "microbatches=4" in here.strategy
    assert apart(here, trained(spec, workers, batch)) < 1e-10


def test_activations_stay_between_neighbours() -> None:
    links = trained("varuna", 4, 8).traffic.by_link
    pairs = {tuple(sorted(name.replace("worker ", "").split("->"))) for name, size in links.items() if size}
    assert pairs == {("0", "1"), ("2", "3"), ("0", "2"), ("1", "3")}
