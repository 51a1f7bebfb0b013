"""What the commands ask of `covey.run`."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from covey.cli import app
from tests.cli.conftest import Calls


@pytest.mark.parametrize("spelling", ["--spot-trace", "--trace"])
def test_run_passes_every_flag(runner: CliRunner, calls: Calls, spelling: str) -> None:
    flags = (
        "--strategy ssp(bound=2) --workers 3 --servers 2 --replicas 2 --engine local --epochs 4 --until accuracy:0.9 "
        "--scores 2 --seed 7 --threads 1 --save m.safetensors --checkpoint kept --every 5s --resume old --stall 9s "
        "--on-failure restart --max-failures 4 --best accuracy --patience 3 --keeper etcd:h:1/a --standby "
        "--register digits --store kept_models "
        "--preparers 3 --link-rate 50mbit --hosts hosts.txt --place servers:node0 --interface eth1 --insecure "
        "--cipher aes-256-gcm"
    )
    trace = [spelling, "examples/spot.csv"]
    shown = runner.invoke(app, ["run", "task.py:mine", *flags.split(), "--faults", "kill worker 1@5s", *trace])
    assert shown.exit_code == 0, shown.output
    expected = {
        "task": "task.py:mine",
        "strategy": "ssp(bound=2)",
        "workers": 3,
        "servers": 2,
        "replicas": 2,
        "engine": "local",
        "epochs": 4,
        "steps": None,
        "until": "accuracy:0.9",
        "scores": 2,
        "score_every": None,
        "best": "accuracy",
        "patience": 3,
        "seed": 7,
        "threads": 1,
        "save": Path("m.safetensors"),
        "register": "digits",
        "store": Path("kept_models"),
        "checkpoint": Path("kept"),
        "every": "5s",
        "resume": Path("old"),
        "on_failure": "restart",
        "max_failures": 4,
        "keeper": "etcd:h:1/a",
        "standby": True,
        "stall": "9s",
        "preparers": 3,
        "link_rate": "50mbit",
        "hosts": Path("hosts.txt"),
        "place": "servers:node0",
        "interface": "eth1",
        "insecure": True,
        "cipher": "aes-256-gcm",
        "faults": "kill worker 1@5s",
        "spot_trace": Path("examples/spot.csv"),
        "runs": None,
        "log": (),
        "profiled": False,
    }
    assert calls.asked == {**expected, "command": calls.asked["command"], "watcher": calls.asked["watcher"]}
    assert "m.safetensors" in shown.stdout


def test_the_command_can_be_typed_again(runner: CliRunner, calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["run", "my task.py", "--until", "accuracy>=0.9"]
    monkeypatch.setattr("sys.argv", ["/usr/bin/covey", *arguments])
    runner.invoke(app, arguments)
    assert calls.asked["command"] == "covey run 'my task.py' --until 'accuracy>=0.9'"


def test_simulate_builds_the_cluster(runner: CliRunner, calls: Calls) -> None:
    flags = "--bandwidth 100mbit --latency 1ms --compute 20ms --jitter 0.3 --slow 3:4x --slow 1:2x --kill 2@5s"
    shown = runner.invoke(app, ["simulate", "task.py", "--workers", "4", *flags.split()])
    assert shown.exit_code == 0, shown.output
    cluster = calls.asked["cluster"]
    assert calls.asked["engine"] == "simulated"
    assert cluster.link.bandwidth == 12_500_000
    assert (cluster.compute, cluster.jitter) == (0.02, 0.3)
    assert cluster.slowdowns == {3: 4.0, 1: 2.0}
    assert cluster.kills == {"worker 2": 5.0}


def test_simulate_takes_the_workers_of_the_file(runner: CliRunner, calls: Calls) -> None:
    shown = runner.invoke(app, ["simulate", "task.py", "--cluster", "examples/cluster.toml", "--timing-only"])
    assert shown.exit_code == 0, shown.output
    assert calls.asked["workers"] == 8
    assert calls.asked["timing_only"] is True


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--cluster examples/cluster.toml --slow 1:2x", "omit --slow"),
        ("--cluster no.toml", "cannot read the cluster file no.toml: No such file or directory; give a TOML file"),
        ("--cluster examples/cluster.toml --workers 3", "the cluster has 8 workers"),
        ("--slow 7:2x", "no worker 7"),
        ("--bandwidth fast", "100mbit, 1gbit"),
        ("--jitter much", "such as 0.3"),
    ],
)
def test_bad_clusters_are_refused(runner: CliRunner, calls: Calls, flags: str, said: str) -> None:
    shown = runner.invoke(app, ["simulate", "task.py", *flags.split()])
    assert shown.exit_code == 2
    assert said in shown.stderr
    assert not calls.asked


@pytest.mark.parametrize(
    ("line", "workers", "own"),
    [
        ("SCRIPT", 2, ""),
        ("--workers 4 SCRIPT --lr 0.1 --seed 3", 4, "--lr 0.1 --seed 3"),
        ("--workers 4 SCRIPT --workers 9", 4, "--workers 9"),
        ("SCRIPT --workers 4 --strategy=ssp --lr 0.1 --seed 3", 4, "--lr 0.1 --seed 3"),
        ("SCRIPT --verbose --workers 4 data --seed 3", 4, "data --seed 3"),
        ("SCRIPT --workers 4 -- --seed 3 -- x", 4, "--seed 3 -- x"),
        ("--workers 4 SCRIPT -- --seed 3", 4, "--seed 3"),
        ("SCRIPT --help", 2, "--help"),
        ("SCRIPT --workers 4 --epochs 3", 4, "--epochs 3"),
        ("--workers 4 SCRIPT -x --json out.json", 4, "-x --json out.json"),
    ],
)
def test_launch_leaves_the_rest_to_the_script(
    runner: CliRunner, calls: Calls, tmp_path: Path, line: str, workers: int, own: str
) -> None:
    script = tmp_path / "train.py"
    script.touch()
    shown = runner.invoke(app, ["launch", *(str(script) if word == "SCRIPT" else word for word in line.split())])
    assert shown.exit_code == 0, shown.output
    asked = calls.asked
    assert (asked["script"], asked["workers"], asked["arguments"]) == (str(script), workers, own.split())


def test_launch_needs_a_script(runner: CliRunner, calls: Calls) -> None:
    shown = runner.invoke(app, ["launch", "no_such.py"])
    assert shown.exit_code == 2
    assert "there is no file no_such.py" in shown.stderr
