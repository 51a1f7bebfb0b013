"""`compile=`: workers compute with torch.compile(model), and train to the same weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import covey
from covey.data.shards import Shards
from covey.errors import PlanError
from covey.message import Address
from covey.model import build
from covey.model.batches import OwnBatches
from tests.worlds import mlp, sgd


def trained(**settings: Any) -> dict[str, torch.Tensor]:
    given = mlp(sgd(0.1, momentum=0.9), samples=64, **settings)
    return covey.fit(given, "allreduce", 1, steps=12, runs=False).weights


@pytest.mark.parametrize("how", [pytest.param("eager"), pytest.param(True, marks=pytest.mark.full)])
def test_a_compiled_model_trains_to_the_same_weights(how: bool | str) -> None:
    """Dynamo's eager backend runs the traced operations as they are; inductor's may add in another order."""
    plain, compiled = trained(), trained(compile=how)
    worst = max(float((plain[name] - compiled[name]).abs().max()) for name in plain)
    assert worst <= (0 if how == "eager" else 1e-12)
    assert plain.keys() == compiled.keys(), "no name begins with _orig_mod"


def test_a_worker_computes_with_the_compiled_model() -> None:
    """Nothing is compiled before the first batch."""
    from torch._dynamo import OptimizedModule

    for how, compiled in ((False, False), ("eager", True)):
        given, deal = mlp(compile=how), Shards(128, 1, 8, 0)
        source = build.replica(given, Address("worker", 0), True, deal, None).batch_source.own
        assert isinstance(source, OwnBatches) and isinstance(source.model, OptimizedModule) == compiled


def test_virtual_time_and_cut_models_are_refused() -> None:
    with pytest.raises(PlanError, match="for real processes"):
        covey.fit(mlp(compile=True), "bsp", 2, engine="simulated", epochs=1)
    with pytest.raises(PlanError, match="mesh"):
        covey.fit(mlp(compile=True), "allreduce with mesh(stage=2)", 2, epochs=1)


def test_a_machine_without_a_compiler_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(PlanError, match=r"install one.*compile='aot_eager'"):
        covey.fit(mlp(compile=True), "bsp", 2, epochs=1)


@pytest.mark.parametrize("how", ["fast", 1, None])
def test_other_values_are_refused(how: Any) -> None:
    with pytest.raises(PlanError, match=r"compile must be True, False or a backend.*inductor.*aot_eager"):
        mlp(compile=how)
