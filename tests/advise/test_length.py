"""Advice for schedules that follow the length of a run: all trials have the rates of the run that is planned."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch.optim import SGD, Optimizer, lr_scheduler
from torch.optim.lr_scheduler import LRScheduler
from typer.testing import CliRunner

from covey.advise import findings
from covey.advise.choose import advise
from covey.advise.situation import look, time_batch
from covey.advise.trials.length import in_run_of
from covey.advise.trials.trial import SimulatedTrials
from covey.cli import app
from covey.model import build
from covey.model.replica_spec import pace_of
from covey.simulate import from_flags
from covey.task import Task
from covey.task.adjusted import at_rate
from tests.worlds import mlp, sgd

SCRIPT = """
from dataclasses import replace
from torch.optim.lr_scheduler import OneCycleLR
from examples.digits import task as digits

def one_cycle(optimizer, steps):
    return OneCycleLR(optimizer, 0.1, total_steps=steps + 1)

task = replace(digits, scheduler=one_cycle, schedule_by="batch")
"""


def one_cycle(optimizer: Optimizer, steps: int) -> LRScheduler:
    return lr_scheduler.OneCycleLR(optimizer, 0.3, total_steps=steps + 1, cycle_momentum=False)


def scheduled(by: str = "batch") -> Task:
    return mlp(sgd(0.1), samples=200, scheduler=one_cycle, schedule_by=by)


def rates(task: Task, seen: list[int], budget: int) -> list[float]:
    pace = pace_of(task, build.shards(task, 1, 0), budget)
    assert pace is not None
    stepped = pace.start(SGD([torch.zeros(1, requires_grad=True)], lr=0.1))
    found = []
    for samples in seen:
        stepped.reach(samples)
        found.append(stepped.scheduler.get_last_lr()[0])
    return found


@pytest.mark.parametrize("by", ["batch", "epoch"])
def test_a_trial_has_the_rates_of_the_longer_run(by: str) -> None:
    task, moments = scheduled(by), [0, 32, 200, 300, 400]
    whole = rates(task, moments, budget=8 * 200)
    trial = rates(in_run_of(8, task, passes=2), moments, budget=2 * 200)
    assert trial == whole
    assert trial != rates(task, moments, budget=2 * 200), "else the test would tell nothing"


def test_a_factor_on_the_rate_follows_the_longer_run() -> None:
    task = mlp(sgd(0.1), rate=lambda progress: 1 - progress)
    trial = in_run_of(8, task, passes=2)
    assert trial.rate is not None and [trial.rate(0.0), trial.rate(1.0)] == [1.0, 0.75]


def test_a_task_without_such_a_schedule_stays_as_it_is() -> None:
    task = mlp(sgd(0.1), scheduler=lambda optimizer: lr_scheduler.StepLR(optimizer, 2))
    assert in_run_of(8, task, passes=2) is task


def test_a_rate_that_is_only_multiplied_is_that_of_a_run_of_any_length() -> None:
    plain = at_rate(mlp(sgd(0.1)), 0.5)
    assert in_run_of(8, plain, passes=2) is plain
    falling = in_run_of(8, at_rate(mlp(sgd(0.1), rate=lambda progress: 1 - progress), 0.5), passes=2)
    assert falling.rate is not None and [falling.rate(0.0), falling.rate(1.0)] == [0.5, 0.375]


def test_advice_is_trained_within_the_planned_run_and_says_over_how_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("covey.advise.choose.HALVINGS", (3,))
    monkeypatch.setattr("covey.advise.choose.TIMED", 3)
    task = scheduled()
    now = look(task, 2, from_flags(compute="5ms"))
    pace = time_batch(task)
    trials = SimulatedTrials(task, now, pace, spend=0.1, epochs=3)
    advice = advise(task, "train.py", now, trials=trials, epochs=3)
    assert advice.epochs == 3 and any("spread over 3 passes, as --epochs says" in line for line in advice.findings)
    assert all("--epochs 3" in choice.command for choice in advice.choices)
    assert "over 100 passes, as a run with only --until does" in findings.schedule(100, given=False)
    assert SimulatedTrials(task, now, pace).epochs == 100


def test_no_trial_is_longer_than_the_planned_run() -> None:
    task = scheduled()
    now = look(task, 2, from_flags(compute="5ms"))
    trials = SimulatedTrials(task, now, 1e-3, epochs=3)
    level, _ = trials.level(None)
    assert trials.limit(level, None, step=1e-4).steps * 2 * now.batch <= 3 * now.samples


def test_the_command_takes_such_a_task(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    words = ["advise", str(tmp_path / "train.py"), "--workers", "2", "--bandwidth", "1gbit", "--quick", "--epochs", "4"]
    shown = CliRunner().invoke(app, [*words, "--json", str(tmp_path / "advice.json")])
    assert shown.exit_code == 0, shown.output
    first = json.loads((tmp_path / "advice.json").read_text())["choices"][0]
    assert "--epochs 4" in first["command"]
    refused = CliRunner().invoke(app, ["advise", "examples/digits.py", "--delays", "--epochs", "4"])
    assert refused.exit_code == 2 and "omit it, or --epochs" in refused.output
