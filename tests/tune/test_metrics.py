"""By which metric are trials compared? Wrong names are refused before a trial starts; a score that is NaN is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from covey.errors import PlanError
from covey.policy.search import WORST
from covey.task import load_task
from covey.tune import studying, tune
from covey.tune.outcomes import TrialRow
from covey.tune.study_request import metric_of, request
from tests.tune.test_study import TrialsHere

pytest.importorskip("optuna")

FILE = """
import covey, torch
from torch import nn
x = torch.randn(32, 4, generator=torch.Generator().manual_seed(1))
def task(rate=0.1, metrics="r2", better=""):
    def evaluate(model):
        if metrics == "raises":
            raise ValueError("not with these")
        return {name: float("nan") if rate > 0.5 else 0.123456789 for name in metrics.split()}
    return covey.Task(
        model=lambda: nn.Linear(4, 1), data=(x, x.sum(dim=1, keepdim=True)), loss=nn.functional.mse_loss,
        optimizer=lambda params: torch.optim.SGD(params, lr=rate / 100), batch_size=16, evaluate=evaluate,
        better={"r2": better} if better else {},
    )
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    place = tmp_path / "task.py"
    place.write_text(FILE)
    return str(place)


@pytest.mark.parametrize(("arguments", "wanted", "why"), [
    ("", None, r"r2.*more of it better, or less.* better=\{'r2': 'higher'\}\), or 'lower'"),
    ("", "r2", r"more of it better, or less.* better=\{'r2': 'higher'\}\), or 'lower'"),
    ("", "accuracy", "no such metric; there are: r2, loss"),
    ('metrics="r2 mse"', None, "There are: mse, r2. Say it with .*mse"),
    ("metrics=raises", None, "Say it with .*NAME"),
])  # fmt: skip
def test_advice_names_the_metrics_of_the_task(file: str, arguments: str, wanted: str | None, why: str) -> None:
    with pytest.raises(PlanError, match=why):
        metric_of(load_task(f"{file}:task({arguments})" if arguments else file), wanted)


@pytest.mark.parametrize(("arguments", "wanted", "found"), [
    ("better=higher", None, ("r2", "higher")),
    ("better=lower", "r2", ("r2", "lower")),
    ("", "loss", ("loss", "lower")),
    ("metrics=raises", "accuracy", ("accuracy", "higher")),
])  # fmt: skip
def test_the_only_metric_needs_no_name(file: str, arguments: str, wanted: str | None, found: tuple[str, str]) -> None:
    assert metric_of(load_task(f"{file}:task({arguments})" if arguments else file), wanted) == found


@pytest.mark.parametrize("fuse", ["never", "always"])
def test_a_metric_that_is_not_finite_is_told(file: str, monkeypatch: pytest.MonkeyPatch, fuse: str) -> None:
    monkeypatch.setattr(studying, "pool_of", lambda engine: TrialsHere())
    Path(file).write_text(FILE.replace('metrics="r2"', 'metrics="my_accuracy"'))
    told: list[str] = []
    found = tune(file, "rate=0.1|1", epochs=4, slots=1, fuse=fuse, runs=False, told=told.append)
    assert {row.point["rate"]: (row.status, row.why) for row in found.trials} == {
        0.1: ("paused", ""), 1: ("failed", "my_accuracy is not finite after 1 epoch")
    }  # fmt: skip
    assert any("my_accuracy 0.1235 after 1 epoch, paused" in line for line in told), told


def test_to_a_policy_a_trial_that_failed_is_the_worst_whatever_it_scored_before() -> None:
    row = TrialRow(number=0, asked=0, point={}, task="train.py", strategy="bsp", status="failed", curve=[(1, 0.9)])
    assert row.state("higher").curve == ((1, 0.9), (1, WORST)) and row.best("higher") == WORST


def test_fused_trials_can_be_compared_by_the_loss_of_training(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(studying, "pool_of", lambda engine: TrialsHere())
    found = tune(file, "rate=0.1|0.2", metric="loss", epochs=2, policy="random", fuse="always", runs=False)
    assert [row.why for row in found.trials] == ["", ""] and found.best is not None


@pytest.mark.parametrize(("better", "target"), [("higher", 0.2), ("lower", -0.2)])
def test_the_target_of_pop_is_one_of_the_metric(file: str, better: str, target: float) -> None:
    Path(file).write_text(FILE.replace('better=""', f'better="{better}"'))
    given = {"epochs": 2, "trials": 4, "slots": 1, "seed": 0, "engine": "simulated", "workers": 1, "strategy": "bsp"}
    given |= {"within": None, "until": None, "metric": None, "sampler": "random", "fuse": "never"}
    assert request(file, "rate=log(0.01, 1)", policy="pop(target=0.2)", **given).policy.target == target
