"""Every pair that the table allows runs; every one that it refuses says why."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from _pytest.mark.structures import ParameterSet

from covey import catalog
from covey.errors import PlanError
from covey.exchange.codecs.by_name import CODECS
from covey.task import Task
from tests.pages.compatibility import OPTIMIZERS, PAGE, REFUSES, WORKERS, page, pairs, refused
from tests.promises.specs import SPECS
from tests.worlds import mlp, run

ALL = [spec for _, spec in pairs()]
ALLOWED = [spec for spec in ALL if not refused(spec)]


SAMPLES, STEPS = 64, 10  # an epoch has two steps: what changes from epoch to epoch, as dgc does in the first four, ends
OFTEN = 2  # optimizers that every run of the tests tries with every name; `make test-full` tries all


def _often(name: str) -> ParameterSet:
    return pytest.param(name, marks=() if name in list(OPTIMIZERS)[:OFTEN] else pytest.mark.full)


MANY = ("bsp", "allreduce")  # strategies that every run of the tests tries with every codec


def _sampled(number: int, spec: str) -> ParameterSet:
    """All strategies with a codec each, and a few with all of them; the rest is for `make test-full`."""
    name, coded, _ = spec.partition(" + ")
    often = not coded or name in MANY or number % len(CODECS) == catalog.names().index(name) % len(CODECS)
    return pytest.param(spec, marks=() if often else pytest.mark.full)


@pytest.mark.parametrize("spec", [_sampled(number, spec) for number, spec in enumerate(ALLOWED)])
def test_an_allowed_pair_runs(spec: str) -> None:
    world = run(mlp(samples=SAMPLES), spec, WORKERS, steps=STEPS)
    assert world.outcome.samples > 0


def test_a_refused_pair_says_why() -> None:
    reasons = {spec: refused(spec) for spec in ALL if spec not in ALLOWED}
    assert all(len(reason) > 15 for reason in reasons.values())


@pytest.mark.parametrize("optimizer", [_often(name) for name in OPTIMIZERS])
@pytest.mark.parametrize("name", catalog.for_any_model())
def test_optimizers(name: str, optimizer: str) -> None:
    """Runs with a schedule and clipping, unless it is known to refuse this optimizer, with its reason."""
    refuses = REFUSES.get((name, optimizer))
    with pytest.raises(PlanError, match=refuses) if refuses else nullcontext():
        world = run(task(name, optimizer), SPECS.get(name, name), WORKERS, steps=STEPS)
        assert world.outcome.samples > 0
        assert all(torch.isfinite(tensor).all() for tensor in world.scored.values())


def task(name: str, optimizer: str) -> Task:
    """With all that a task may ask for."""
    clip = None if catalog.resolve(name, WORKERS).terms.clips == "never" else 1.0
    return mlp(OPTIMIZERS[optimizer], samples=SAMPLES, rate=lambda progress: 1 - progress / 2, clip_norm=clip)


def test_the_page_is_what_the_code_says() -> None:
    assert PAGE.read_text() == page(), "run: make pages (python -m tests.pages)"
