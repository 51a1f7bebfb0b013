"""The systems of the surveys train under their own names, as the compositions they are."""

from __future__ import annotations

import pytest

import covey
from covey.systems import SYSTEMS
from tests.worlds import mlp


# `switch` divides experts, which digits.py has not: tests/parallelism/test_experts.py trains it
@pytest.mark.parametrize("name", [name for name in SYSTEMS if name != "switch"])
@pytest.mark.parametrize("accuracy", [0.85, pytest.param(0.95, marks=pytest.mark.full)])
def test_a_system_trains_digits_under_its_name(name: str, accuracy: float) -> None:
    result = covey.fit("examples/digits.py", name, 4, engine="simulated", until=f"accuracy>={accuracy}")
    assert result.stopped == "target"
    assert result.strategy.startswith(name)


@pytest.mark.parametrize(
    "name", [name for name, system in SYSTEMS.items() if system.row and system.row.parallelism == "model + data"]
)
@pytest.mark.parametrize("mesh", ["stage=2, cut=equal", "tensor=2"])
def test_the_model_parallel_half_of_a_system_is_a_mesh(name: str, mesh: str) -> None:
    """DistBelief's is Downpour between replicas that are stages, or that divide layers."""
    spec = f"{'project_adam(epoch=1)' if name == 'project_adam' else name} with mesh(replica=2, {mesh})"
    result = covey.fit(mlp(), spec, 4, engine="simulated", steps=3)
    assert result.strategy.startswith(name) and result.taxonomy["parallelism"] == "model + data"
    assert result.samples == 3 * 2 * 8
