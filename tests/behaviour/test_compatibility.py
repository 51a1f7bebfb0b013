"""Every pair that the table allows runs; every one that it refuses says why."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from covey import catalog
from covey.errors import PlanError
from tests.behaviour.compatibility import OPTIMIZERS, PAGE, WORKERS, page, pairs, refused
from tests.promises.specs import SPECS
from tests.worlds import mlp, run

ALL = [spec for _, spec in pairs()]
ALLOWED = [spec for spec in ALL if not refused(spec)]


REFUSES = {
    ("bigdl", "layer-wise"): "use an element-wise optimizer",
    ("hogwild", "AdamW, groups"): "SGD without momentum",
    ("hogwild++", "AdamW, groups"): "SGD without momentum",
}
"""Optimizers that a strategy refuses, and what its reason says would work."""


@pytest.mark.parametrize("spec", ALLOWED)
def test_an_allowed_pair_runs(spec: str) -> None:
    world = run(mlp(), spec, WORKERS, steps=20)
    assert world.outcome.samples > 0


def test_a_refused_pair_says_why() -> None:
    reasons = {spec: refused(spec) for spec in ALL if spec not in ALLOWED}
    assert all(len(reason) > 15 for reason in reasons.values())


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", catalog.names())
def test_optimizers(name: str, optimizer: str) -> None:
    """Runs 20 steps, unless it is known to refuse this one, with its reason."""
    refuses = REFUSES.get((name, optimizer))
    with pytest.raises(PlanError, match=refuses) if refuses else nullcontext():
        world = run(mlp(OPTIMIZERS[optimizer]), SPECS.get(name, name), WORKERS, steps=20)
        assert world.outcome.samples > 0


def test_the_page_is_what_the_code_says() -> None:
    assert PAGE.read_text() == page(), "run: python -m tests.behaviour.compatibility"
