"""`ema=`: the average that torch.optim.swa_utils keeps of a plain loop's model, under every strategy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import covey
from covey import catalog
from covey.data.shards import Shards
from covey.errors import PlanError
from covey.model import build
from covey.model.randomness import seed_of, seed_torch
from covey.model.threads import one_thread
from covey.scoring import accuracy
from covey.task import Task
from tests.promises.specs import workable
from tests.worlds import CLUSTER, cloud, mlp, sgd

EPOCHS = 3


def normalized() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3)).double()


def task(decay: float = 0.7, **more: Any) -> Task:
    return mlp(sgd(0.3, momentum=0.5), samples=96, ema=decay, **more)


def by_hand(given: Task, batch: int, epochs: int = EPOCHS) -> dict[str, Tensor]:
    """The plain loop with torch's own average."""
    x, y = given.data  # type: ignore[misc]
    deal = Shards(len(x), 1, batch, 0)
    assert given.ema is not None
    with one_thread():
        model = build.model(given, 0)
        average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(given.ema), use_buffers=True)
        optimizer = given.optimizer(iter(list(model.named_parameters())))
        for step in range(epochs * deal.steps(0)):
            chosen = deal.indices(0, step)
            seed_torch(seed_of(0, 0, step))
            optimizer.zero_grad()
            given.forward(model, (x[chosen], y[chosen])).backward()
            optimizer.step()
            average.update_parameters(model)
    return {name: value.detach() for name, value in average.module.state_dict().items() if value.is_floating_point()}


def apart(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    return max(float((one[name].double() - other[name].double()).abs().max()) for name in other)


@pytest.mark.parametrize("strategy", ["bsp", "allreduce", "local_sgd", "sliced", "ssp"])
def test_one_worker_has_torchs_average_to_the_bit(strategy: str) -> None:
    given = task(model=normalized)
    result = covey.fit(given, strategy, 1, engine="simulated", epochs=EPOCHS)
    assert apart(result.ema, by_hand(given, 8)) == 0
    assert apart(result.ema, {k: v for k, v in result.weights.items() if v.is_floating_point()}) > 1e-3
    assert result.ema["1.num_batches_tracked"] == 36, "counters are the model's own"


@pytest.mark.parametrize(("strategy", "servers"), [("bsp", 2), ("allreduce", None), ("sliced", None), ("p3", 2)])
def test_four_workers_have_the_average_of_the_fourfold_batch(strategy: str, servers: int | None) -> None:
    given = task()
    found = covey.fit(given, strategy, 4, servers=servers, engine="simulated", epochs=EPOCHS).ema
    assert apart(found, by_hand(given, 32)) < 1e-12


def test_processes_score_it_beside_the_model_and_save_it(tmp_path: Path) -> None:
    data = cloud(96)
    given = task(evaluate=accuracy(data))
    result = covey.fit(given, "bsp", 2, epochs=EPOCHS, save=tmp_path / "model.safetensors", runs=False)
    assert apart(result.ema, by_hand(given, 16)) < 1e-12
    assert apart(load_file(tmp_path / "model.ema.safetensors"), result.ema) == 0
    model = build.model(given, 0)
    for weights, name in ((result.weights, "accuracy"), (result.ema, "ema_accuracy")):
        model.load_state_dict(weights)
        assert result.history[-1][name] == accuracy(data)(model)["accuracy"]


LATE = {"sandblaster"}
"""Strategies whose servers hear of an update only with the next batch."""


@pytest.mark.parametrize("name", sorted(set(catalog.for_any_model()) - LATE))
def test_every_strategy_averages_what_it_shows_after_each_update(name: str) -> None:
    """An average that forgets at once is the model."""
    given = mlp(sgd(0.1), samples=64, ema=1e-9)
    if name == "one_weird_trick":
        with pytest.raises(PlanError, match="omit either"):
            covey.fit(given, name, 2, engine="simulated", epochs=2)
        return
    result = covey.fit(given, name, workable(name, 2), engine="simulated", epochs=2)
    assert apart(result.ema, result.weights) < 1e-8
    slow = covey.fit(mlp(sgd(0.1), samples=64, ema=0.9), name, workable(name, 2), engine="simulated", epochs=2)
    assert apart(slow.weights, result.weights) == 0, "it changes nothing of the training"
    assert apart(slow.ema, slow.weights) > 1e-6


@pytest.mark.parametrize("strategy", ["bsp", "allreduce"])
def test_a_kept_run_goes_on_with_its_average(strategy: str, tmp_path: Path) -> None:
    given: Task = task(model=normalized)
    more: dict[str, Any] = {"epochs": 6, "engine": "simulated", "cluster": CLUSTER}
    whole = covey.fit(given, strategy, 2, **more)
    first = covey.fit(given, strategy, 2, checkpoint=tmp_path / "k", every="25ms", until="loss<=0.9", **more)
    assert first.stopped == "target"
    rest = covey.fit(given, strategy, 2, resume=tmp_path / "k", **more)
    assert apart(rest.ema, {k: v for k, v in whole.ema.items() if v.is_floating_point()}) == 0


def test_a_target_may_be_one_of_the_average() -> None:
    data = cloud(96)
    given = task(evaluate=accuracy(data), better={"ema_accuracy": "higher"})
    result = covey.fit(given, "bsp", 2, engine="simulated", epochs=30, until="ema_accuracy:0.8")
    assert result.stopped == "target" and result.reached and result.reached.metric == "ema_accuracy"


@pytest.mark.parametrize("decay", [0, 1, 1.0, 1.5, -0.1, "0.9", True])
def test_other_decays_are_refused(decay: Any) -> None:
    with pytest.raises(PlanError, match=r"between 0 and 1, such as 0\.999|ema must be a number"):
        mlp(ema=decay)


def test_a_task_without_one_has_none() -> None:
    assert covey.fit(mlp(), "bsp", 1, engine="simulated", epochs=1).ema == {}
