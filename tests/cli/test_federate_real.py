"""What `covey federate serve` and `covey federate join` ask for, and what they show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from covey.cli import app
from covey.engines.service.guest_keys import KeyFolder
from covey.observe.result import Result
from covey.run.federated import joining, serving
from covey.run.federated.federated_options import RoundOptions
from covey.run.federated.joining import Attendance
from tests.cli.conftest import ResultMaker


def test_serve_passes_every_flag_on(
    runner: CliRunner, result: ResultMaker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: dict[str, Any] = {}

    def serve(task: str, strategy: str, **options: Any) -> Result:
        options.pop("listens")("tcp://0.0.0.0:7071")
        asked.update(options, task=task, strategy=strategy)
        return result()

    monkeypatch.setattr(serving, "serve", serve)
    keys = tmp_path / "keys"
    KeyFolder(keys).add("alice", 5, tmp_path / "alice.key")
    flags = (
        f"--strategy fedprox(mu=0.1) --keys {keys} --listen :7071 --per-round 5 --rounds 7 --over 1.5 --least 0.6 "
        f"--selection 30s --reporting 2m --no-overlap --seed 3 --until accuracy:0.9 --score-every 2 --checkpoint kept "
        f"--save {tmp_path}/m.safetensors --log csv:a.csv --no-record --register mine --store {tmp_path}/models"
    )
    shown = runner.invoke(app, ["federate", "serve", "task.py:mine", *flags.split()])
    assert shown.exit_code == 0, shown.output
    assert "listening at 0.0.0.0:7071" in shown.output
    del asked["watcher"], asked["command"]
    waits = RoundOptions(per_round=5, over=1.5, least=0.6, selection="30s", reporting="2m", overlap=False)
    assert asked == {
        "task": "task.py:mine", "strategy": "fedprox(mu=0.1)", "listen": ":7071", "keys": keys, "rounds": 7,
        "waits": waits, "until": "accuracy:0.9", "score_every": 2, "seed": 3, "save": tmp_path / "m.safetensors",
        "checkpoint": Path("kept"), "log": ["csv:a.csv"], "runs": False,
        "register": "mine", "store": tmp_path / "models", "epsilon": None, "identities": None,
    }  # fmt: skip


def test_join_passes_every_flag_on(runner: CliRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def join(service: str, task: str, **options: Any) -> Attendance:
        options.pop("say")("joined")
        asked.update(options, service=service, task=task)
        return Attendance(visits=4, reports=3, refused=1)

    monkeypatch.setattr(joining, "join", join)
    flags = "--key a.key --data mine.py:data --patience 30s"
    shown = runner.invoke(app, ["federate", "join", "host:7070", "task.py:mine", *flags.split()])
    assert shown.exit_code == 0, shown.output
    assert "came 4 times, trained 3 times, 1 reports were refused" in shown.output
    assert asked == {
        "service": "host:7070", "task": "task.py:mine", "key": Path("a.key"), "data": "mine.py:data", "patience": "30s",
        "fewest": 2, "identities": None, "workers": 1,
    }  # fmt: skip


def test_a_client_that_only_declined_sums_fails(runner: CliRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "join", lambda *_, **options: Attendance(visits=2, withdrew="too few can open it"))
    shown = runner.invoke(app, ["federate", "join", "host:7070", "task.py", "--key", "a.key"])
    assert shown.exit_code == 1 and "this client took part in no round: too few can open it" in shown.output
    done = Attendance(visits=2, reports=1, withdrew="too few can open it", smallest=2)
    monkeypatch.setattr(joining, "join", lambda *_, **options: done)
    shown = runner.invoke(app, ["federate", "join", "host:7070", "task.py", "--key", "a.key"])
    assert shown.exit_code == 0 and "smallest sum: 2 clients" in shown.output
