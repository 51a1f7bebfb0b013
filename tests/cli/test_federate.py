"""What `covey federate simulate` asks for, and what it shows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import covey.run
from covey.cli import app
from covey.observe.result import Result
from tests.cli.conftest import ResultMaker


def test_every_flag_is_passed_on(
    runner: CliRunner, result: ResultMaker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: dict[str, Any] = {}

    def federate(task: str, strategy: str, **options: Any) -> Result:
        asked.update(options, task=task, strategy=strategy)
        return result()

    monkeypatch.setattr(covey.run, "federate", federate)
    flags = (
        "--strategy fedprox(mu=0.1) --clients 50 --per-round 5 --rounds 7 --partition labels(count=3) --over 1.5 "
        "--least 0.6 --selection 30s --reporting 2m --no-overlap --availability daily --compute 20ms "
        f"--speed-spread 0.1 --bandwidth 1gbit --uplink 1mbit --latency 9ms --link-spread 0.2 --seed 3 "
        f"--until accuracy:0.9 --score-every 2 --epsilon 8 --timing-only --save {tmp_path}/m.safetensors "
        f"--log csv:a.csv --no-record --checkpoint {tmp_path}/kept --every 5m --resume {tmp_path}/old"
    )
    shown = runner.invoke(app, ["federate", "simulate", "task.py:mine", *flags.split()])
    assert shown.exit_code == 0, shown.output
    del asked["watcher"], asked["command"]
    assert asked == {
        "task": "task.py:mine", "strategy": "fedprox(mu=0.1)", "clients": 50, "per_round": 5, "rounds": 7,
        "partition": "labels(count=3)", "over": 1.5, "least": 0.6, "selection": "30s", "reporting": "2m",
        "overlap": False, "availability": "daily", "compute": "20ms", "speed_spread": 0.1, "bandwidth": "1gbit",
        "uplink": "1mbit", "latency": "9ms", "link_spread": 0.2, "seed": 3, "until": "accuracy:0.9", "score_every": 2,
        "epsilon": 8.0, "timing_only": True, "save": tmp_path / "m.safetensors", "log": ["csv:a.csv"], "runs": False,
        "checkpoint": tmp_path / "kept", "every": "5m", "resume": tmp_path / "old",
    }  # fmt: skip


def test_a_run_shows_its_rounds_and_clients(runner: CliRunner, tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    flags = "--clients 12 --per-round 4 --rounds 3 --partition dirichlet(alpha=1)"
    kept = ["--json", str(file), "--runs", str(tmp_path)]
    shown = runner.invoke(app, ["federate", "simulate", "examples/digits.py", *flags.split(), *kept])
    assert shown.exit_code == 0, shown.output
    assert "12 clients, simulated" in shown.output and "3 committed" in shown.output
    assert "of 12 took part" in shown.output
    told = json.loads(file.read_text())
    assert len(told["participation"]["rounds"]) == 3 and told["settings"]["partition"] == "dirichlet(alpha=1)"
    assert len(list(tmp_path.glob("*/result.json"))) == 1, "it is recorded as any other run"


def test_a_private_run_shows_what_was_spent(runner: CliRunner, tmp_path: Path) -> None:
    flags = ["--strategy", "fedavg + secagg + dp(delta=1e-3)", "--epsilon", "8", "--selection", "10s", "--no-record"]
    given = ["--clients", "12", "--per-round", "6", "--rounds", "2", "--json"]
    file = tmp_path / "result.json"
    shown = runner.invoke(app, ["federate", "simulate", "examples/digits.py", *flags, *given, str(file)])
    assert shown.exit_code == 0, shown.output
    told = json.loads(file.read_text())["privacy"]
    words = " ".join(shown.output.split())
    smallest = f"sums of reports only (smallest sum: {told['smallest_sum']} clients)"
    assert f"{smallest}; epsilon {told['epsilon']:.3g} of 8 spent at delta 0.001" in words
    assert "loss not told (dp)" in words and "loss nan" not in words
    assert "chance from a seed, for simulation only" in words and told["epsilon"] <= 8 == told["limit"]


def test_what_cannot_work_is_refused_by_name(runner: CliRunner) -> None:
    shown = runner.invoke(app, ["federate", "simulate", "examples/digits.py", "--strategy", "fedavgg"])
    assert shown.exit_code == 2 and "did you mean 'fedavg'" in shown.output
    shown = runner.invoke(app, ["run", "examples/digits.py", "--strategy", "fedavg"])
    assert shown.exit_code == 2 and "covey federate simulate" in shown.output


def test_a_run_without_a_committed_round_fails_and_saves_nothing(runner: CliRunner, tmp_path: Path) -> None:
    there, model = tmp_path / "there.csv", tmp_path / "model.safetensors"
    there.write_text("0,0s,9h\n")
    flags = f"--clients 4 --per-round 4 --rounds 2 --availability {there} --save {model} --no-record"
    shown = runner.invoke(app, ["federate", "simulate", "examples/digits.py", *flags.split()])
    assert shown.exit_code == 1 and not model.exists(), shown.output
    assert "0 committed, 1,000 not begun" in shown.output and "and it needs 4" in shown.output
    assert "no round was committed" in shown.output
