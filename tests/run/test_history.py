"""The history of a run: one line for each score, each with a loss, and the last one of the model that came of it."""

from __future__ import annotations

import math
from typing import Any

import pytest
from torch import nn

from covey import accuracy, build, fit
from covey.observe.result import Result
from covey.simulate import BytesPerSecond, Cluster, Link, Seconds
from tests.worlds import cloud, mlp, sgd

SLOW = Cluster(compute=Seconds(0.01), link=Link(bandwidth=BytesPerSecond(1e5), latency=Seconds(0.02)))


def trained(strategy: str, **given: Any) -> Result:
    task = mlp(sgd(0.3), evaluate=accuracy(cloud(128)))
    return fit(task, strategy, 4, **{"engine": "simulated", "cluster": SLOW, "epochs": 3, **given})


@pytest.mark.parametrize("strategy", ["bsp", "asynchronous", "ssp(bound=2)", "allreduce", "easgd", "gosgd", "dpsgd"])
@pytest.mark.parametrize("scores", [1, 4])
def test_every_line_has_more_samples_and_a_loss(strategy: str, scores: int) -> None:
    history = trained(strategy, scores=scores).history
    samples = [row["samples"] or 0 for row in history]
    assert samples == sorted(set(samples)) and samples[-1] == 3 * 128
    assert all(row["loss"] is not None and math.isfinite(row["loss"]) for row in history), history


@pytest.mark.parametrize("strategy", ["bsp", "asynchronous", "easgd"])
def test_the_last_line_is_of_the_model_that_came_of_it(strategy: str) -> None:
    """The last gradients are still on their way when the last sample has been seen."""
    task = mlp(sgd(0.3), evaluate=lambda model: {"sum": float(sum(p.detach().sum() for p in model.parameters()))})
    result = fit(task, strategy, 4, engine="simulated", cluster=SLOW, epochs=2)
    module: nn.Module = build.model(task, 0)
    module.load_state_dict(result.weights)
    assert task.evaluate is not None
    assert result.history[-1]["sum"] == pytest.approx(task.evaluate(module)["sum"], abs=1e-12)


def test_a_target_met_by_the_last_line_is_met() -> None:
    result = trained("bsp", epochs=1, until="accuracy>=0.01")
    assert (result.stopped, len(result.history)) == ("target", 1) and result.reached is not None
