"""The history of a run: one line for each score, each with a loss, and the last one of the model that came of it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import covey
from covey import accuracy, fit
from covey.checkpoint import CheckpointDirectory
from covey.errors import PlanError
from covey.model import build
from covey.observe.referee import Row
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
    assert all(row["loss"] is not None and math.isfinite(row["loss"]) for row in history[1:]), history


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
    task = mlp(sgd(0.3), evaluate=lambda model: {"steps": 0.0 if fresh(model) else 1.0})
    result = fit(task, "bsp", 2, engine="simulated", epochs=1, until="steps>=1")
    assert (result.stopped, len(result.history)) == ("target", 2)
    assert result.reached is not None and result.reached.samples == 128


# -- the initial weights ----------------------------------------------------------------------------------------------


def fresh(model: Any) -> bool:
    """Whether these are the weights with which all begin."""
    return torch.equal(model[0].weight, build.model(mlp(), 0)[0].weight)  # type: ignore[index]


def beginning(history: list[Any]) -> None:
    """The first line is of the initial weights, before any time has passed."""
    first = history[0]
    assert (first["seconds"], first["samples"], first["bytes"]) == (0, 0, 0) and first["fresh"] == 1.0
    assert first["loss"] is None or math.isnan(first["loss"]), "nothing was trained, so there is no training loss"
    assert len(history) > 1 and history[-1]["fresh"] == 0.0


@pytest.mark.parametrize("strategy", ["bsp", "asynchronous", "easgd", "dpsgd", "sliced", "a_bsp"])
def test_the_first_line_is_of_the_initial_weights(strategy: str) -> None:
    task = mlp(sgd(0.3), evaluate=lambda model: {"fresh": float(fresh(model))})
    beginning(fit(task, strategy, 4, engine="simulated", cluster=SLOW, epochs=2).history)


def test_the_first_line_on_processes_and_once_in_a_resumed_run(tmp_path: Path) -> None:
    task = mlp(sgd(0.3), evaluate=lambda model: {"fresh": float(fresh(model))})
    whole = fit(task, "local_sgd", 1, epochs=2, checkpoint=tmp_path / "kept", every="1ms")
    beginning(whole.history)
    resumed = fit(task, "local_sgd", 1, epochs=2, resume=tmp_path / "kept")
    assert [row["samples"] for row in resumed.history].count(0) == 1
    beginning(resumed.history)


@pytest.mark.parametrize("engine", ["simulated", pytest.param("local", marks=pytest.mark.full)])
def test_a_misspelt_metric_is_found_before_the_first_step(engine: str, tmp_path: Path) -> None:
    def step(model: Any, batch: Any) -> Any:
        (tmp_path / "stepped").touch()
        return model(batch[0]).sum()

    task = mlp(loss=None, step=step, evaluate=lambda model: {"accuracy": 0.5})
    with pytest.raises(PlanError, match="accurracy>=0.9 names no metric .* did you mean 'accuracy'"):
        fit(task, "local_sgd", 1, engine=engine, until="accurracy>=0.9")
    assert not (tmp_path / "stepped").exists()


@pytest.mark.parametrize("engine", ["simulated", "local"])
def test_a_target_that_the_initial_weights_meet_ends_the_run_at_once(engine: str) -> None:
    task = mlp(evaluate=lambda model: {"accuracy": float(fresh(model))})
    result = fit(task, "bsp", 2, engine=engine, until="accuracy>=0.5")
    assert (result.stopped, result.samples, result.seconds, len(result.history)) == ("target", 0, 0, 1)
    assert result.reached is not None and (result.reached.seconds, result.reached.samples) == (0, 0)
    assert all(torch.equal(value, build.model(task, 0).state_dict()[name]) for name, value in result.weights.items())


def test_without_evaluate_nothing_is_scored_before() -> None:
    for given in ({}, {"until": "loss<=0.01"}):
        history = fit(mlp(), "bsp", 2, engine="simulated", epochs=1, **given).history
        assert [row["samples"] for row in history] == [128]


class Heard(covey.Callback):
    """Which scores a callback is told of."""

    def __init__(self) -> None:
        self.samples: list[Any] = []

    def scored(self, row: Row) -> None:
        self.samples.append(row["samples"])


def test_a_run_that_starts_again_tells_each_score_once(tmp_path: Path) -> None:
    heard = Heard()
    given: dict[str, Any] = {"engine": "simulated", "epochs": 4, "scores": 4, "callbacks": [heard]}
    result = covey.fit(
        "examples/digits.py", "bsp", 2, **given, faults="kill worker 1@0.6s", on_failure="restart", every="250ms",
        checkpoint=tmp_path / "kept", runs=tmp_path / "runs",
    )  # fmt: skip
    assert isinstance(result.membership, list) and result.goodput and result.goodput.repeated > 360
    assert heard.samples == [row["samples"] for row in result.history] == sorted(set(heard.samples))
    journal = next(tmp_path.glob("runs/*/journal.jsonl")).read_text()
    assert journal.count('"event":"score"') == len(result.history)


def test_a_checkpoint_keeps_the_history_as_it_was(tmp_path: Path) -> None:
    """Scores that come after it are those of the run that goes on."""
    given: dict[str, Any] = {"engine": "simulated", "epochs": 4, "scores": 4}
    whole = covey.fit("examples/digits.py", "bsp", 2, **given, checkpoint=tmp_path / "kept", every="700ms")
    past = CheckpointDirectory(tmp_path / "kept").newest()[1].progress["history"]
    resumed = covey.fit("examples/digits.py", "bsp", 2, **given, resume=tmp_path / "kept")
    assert 1 < len(past) < len(whole.history) - 1
    assert [dict(row, loss=0) for row in resumed.history] == [dict(row, loss=0) for row in whole.history]
