"""`best` keeps the model with the best score, `patience` ends a run that does not get better; a restart keeps both."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import covey
from covey.errors import PlanError, UnknownMetric
from covey.observe.referee import BestScore, Preference, Referee
from covey.task import Task
from tests.worlds import mlp, sgd

ENGINES = ["simulated", "local"]


def curve(values: list[float], metric: str = "quality") -> Any:
    """A score that takes these values in turn: whatever the model does."""
    left = list(values)

    def evaluate(model: nn.Module) -> Mapping[str, float]:
        return {metric: left.pop(0) if len(left) > 1 else left[0]}

    return evaluate


def norm(model: nn.Module) -> Mapping[str, float]:
    """Falls, and rises again as the weights grow."""
    return {"norm": float(sum(p.detach().square().sum() for p in model.parameters()))}


def task(**more: Any) -> Task:
    given: dict[str, Any] = {"evaluate": norm, "better": {"norm": "lower", "quality": "higher"}, "samples": 64}
    return mlp(sgd(0.1), **(given | more))


def same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in other)


def judged(values: list[float], way: Any = "higher", patience: int | None = 2) -> Referee:
    referee = Referee(every=10)
    referee.prefers = Preference("quality", way, patience)
    for number, value in enumerate(values):
        referee.judge(number, number * 10, 0, {"quality": value}, 0.5)
    return referee


@pytest.mark.parametrize(
    ("values", "way", "best", "over"),
    [
        ([1, 2, 3], "higher", 3, False),
        ([1, 2, 2, 1], "higher", 2, True),
        ([1, 2, 1], "higher", 2, False),
        ([3, 2, 4, 1, 5], "lower", 1, False),
        ([3, 2, 4, 5], "lower", 2, True),
        ([float("nan"), 2, float("nan"), float("nan")], "higher", 2, True),
    ],
)
def test_patience_counts_scores_that_are_not_better(values: list[float], way: str, best: float, over: bool) -> None:
    referee = judged(values, way)
    assert referee.best and referee.best.value == best and referee.exhausted == over
    assert not judged(values, way, patience=None).exhausted


def test_a_line_that_is_replaced_counts_once() -> None:
    referee = judged([3, 1], patience=2)
    referee.judge(2, 10, 0, {"quality": 1}, 0.5)
    assert not referee.exhausted


@pytest.mark.parametrize("engine", ENGINES)
def test_the_best_model_is_kept_and_the_run_ends(engine: str, tmp_path: Path) -> None:
    values = [0.1, 0.5, 0.9, 0.8, 0.9, 0.7, 0.6]
    given = task(evaluate=curve(values, "quality"))
    kept: dict[str, Any] = {"checkpoint": tmp_path / "kept", "every": "1h"}
    result = covey.fit(given, "bsp", 2, engine=engine, epochs=9, best="quality", patience=3, runs=False, **kept)
    assert result.stopped == "patience"
    assert isinstance(result.best, BestScore) and (result.best.value, result.best.samples) == (0.9, 128)
    assert [row["quality"] for row in result.history[:6]] == values[:6]
    short = covey.fit(task(evaluate=None), "bsp", 2, engine=engine, epochs=2, runs=False)
    assert same(result.best_weights, short.weights), "that of the second pass"
    assert same(load_file(tmp_path / "kept/best/model.safetensors"), result.best_weights)
    assert (tmp_path / "kept/best/model.safetensors").stat().st_mode & 0o777 == 0o600
    assert json.loads(result.to_json())["best"]["metric"] == "quality"


@pytest.mark.parametrize("engine", ENGINES)
def test_a_resumed_run_knows_the_best_of_before(engine: str, tmp_path: Path) -> None:
    """The first run ends after its best; the second has only worse ones, and loses its patience with them."""
    kept: dict[str, Any] = {"best": "quality", "engine": engine, "runs": False, "epochs": 8}
    first = task(evaluate=curve([0.1, 0.9, 0.2, 0.99], "quality"))
    one = covey.fit(
        first, "bsp", 2, until="quality>=0.95", checkpoint=tmp_path / "kept", every="1us", **kept
    )
    assert one.stopped == "target" and isinstance(one.best, BestScore) and one.best.value == 0.99
    worse = task(evaluate=curve([0.3, 0.2, 0.1, 0.1], "quality"))
    two = covey.fit(worse, "bsp", 2, resume=tmp_path / "kept", patience=2, **kept)
    assert two.stopped == "patience" and two.best == one.best and same(two.best_weights, one.best_weights)
    better = task(evaluate=curve([0.3, 0.995], "quality"))
    place = tmp_path / "other"
    three = covey.fit(better, "bsp", 2, resume=tmp_path / "kept", checkpoint=place, every="1h", **kept)
    assert isinstance(three.best, BestScore) and three.best.value == 0.995
    assert same(load_file(place / "best/model.safetensors"), three.best_weights)


def test_a_resumed_run_with_another_metric_has_a_best_of_its_own(tmp_path: Path) -> None:
    given: dict[str, Any] = {"engine": "simulated", "runs": False, "epochs": 2}
    one = covey.fit(task(), "bsp", 2, best="norm", checkpoint=tmp_path, every="1us", **given)
    other = task(evaluate=curve([0.3, 0.2, 0.1], "quality"))
    two = covey.fit(other, "bsp", 2, best="quality", resume=tmp_path, **{**given, "epochs": 4})
    assert isinstance(one.best, BestScore) and one.best.metric == "norm"
    assert isinstance(two.best, BestScore) and (two.best.metric, two.best.value) == ("quality", 0.3)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_best_average_is_the_average(engine: str) -> None:
    given = task(ema=0.5, better={"ema_norm": "lower"})
    result = covey.fit(given, "bsp", 2, engine=engine, epochs=2, best="ema_norm")
    norms = [row["ema_norm"] for row in result.history]
    assert norms == sorted(norms, reverse=True), "it falls all the time"
    assert same(result.best_weights, result.ema) and not same(result.best_weights, result.weights)


@pytest.mark.parametrize(
    ("settings", "options", "said"),
    [
        ({}, {"best": "speed"}, r"is more of it better, or less.*'lower'}\)$"),
        ({}, {"best": "acc"}, "is more of it better, or less.* or did you mean 'accuracy'[?]$"),
        ({"evaluate": None}, {"best": "norm"}, "no evaluate"),
        ({}, {"best": "ema_norm"}, "the task has no average"),
        ({}, {"best": "norm", "timing_only": True}, "trains nothing"),
    ],
)
def test_what_cannot_be_compared_is_refused(settings: dict[str, Any], options: dict[str, Any], said: str) -> None:
    with pytest.raises(PlanError, match=said):
        covey.fit(task(**settings), "bsp", 2, engine="simulated", epochs=1, **options)


def test_a_metric_that_nobody_gives_is_named() -> None:
    with pytest.raises(UnknownMetric, match=r"best=.accuracy. names no metric"):
        covey.fit(task(), "bsp", 2, engine="simulated", epochs=1, best="accuracy")


def test_without_it_the_result_says_nothing_of_it() -> None:
    result = covey.fit(task(), "bsp", 2, engine="simulated", epochs=1)
    assert not result.best and result.best_weights == {} and "best" not in json.loads(result.to_json())


def test_a_full_disk_does_not_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    class Watcher:
        def update(self, progress: object) -> None: ...
        def say(self, line: str) -> None:
            said.append(line)

    (tmp_path / "kept").mkdir()
    (tmp_path / "kept/best").write_text("a file")
    result = covey.fit(
        task(), "bsp", 2, engine="simulated", epochs=2, best="norm", checkpoint=tmp_path / "kept", every="1h",
        watcher=Watcher(), runs=False,
    )  # fmt: skip
    assert result.best_weights and any("could not be written" in line for line in said)


def damage(place: str, best: Path) -> None:
    model = best / "model.safetensors"
    if place == "folder":
        best.rename(best.with_name("elsewhere"))
        best.symlink_to(best.with_name("elsewhere"))
        return
    kept = model.read_bytes()
    model.unlink()
    if place == "link":
        (best / "other").write_bytes(kept)
        model.symlink_to(best / "other")
    elif place == "pipe":
        os.mkfifo(model)
    else:
        model.write_bytes(kept[:-5] if place == "torn" else b"nonsense")


@pytest.mark.parametrize("place", ["folder", "link", "pipe", "torn", "nonsense"])
def test_what_lies_in_the_place_of_the_best_model_is_named_and_not_followed(place: str, tmp_path: Path) -> None:
    given: dict[str, Any] = {"engine": "simulated", "best": "quality", "runs": False, "epochs": 4}
    first = task(evaluate=curve([0.1, 0.9], "quality"))
    covey.fit(first, "bsp", 2, checkpoint=tmp_path, every="1us", until="quality>=0.5", **given)
    damage(place, tmp_path / "best")
    before = {file: file.read_bytes() for file in tmp_path.glob("elsewhere/*")}
    said: list[str] = []

    class Watcher:
        def update(self, progress: object) -> None: ...
        def say(self, line: str) -> None:
            said.append(line)

    second = task(evaluate=curve([0.3, 0.4], "quality"))
    result = covey.fit(second, "bsp", 2, resume=tmp_path, watcher=Watcher(), **given)
    assert [line for line in said if "the best model so far is not known" in line and "model.safetensors" in line]
    assert isinstance(result.best, BestScore) and result.best.value < 0.5
    assert before == {file: file.read_bytes() for file in tmp_path.glob("elsewhere/*")}
