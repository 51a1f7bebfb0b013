"""covey runs: list, show, compare, rm."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

import covey
from covey.cli import app
from covey.cli.tables.console import SafeConsole
from covey.cli.tables.runs import print_runs
from covey.observe.journal import Journal
from covey.observe.records import named, recorded_runs

DIGITS = "examples/digits.py"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("records")
    for strategy in ("bsp", "easgd(period=2)"):
        covey.fit(DIGITS, strategy, 2, engine="simulated", epochs=1, runs=place, command=f"covey run {strategy}")
    return place


def told(runner: CliRunner, *words: str | Path) -> str:
    done = runner.invoke(app, ["runs", *map(str, words)])
    assert done.exit_code == 0, done.stderr
    return done.stdout


def test_list(runner: CliRunner, runs: Path, tmp_path: Path) -> None:
    shown = told(runner, "list", "--runs", runs)
    assert shown.count("budget") == 2 and shown.count("accuracy") == 2
    told(runner, "list", "--runs", runs, "--json", tmp_path / "list.json")
    first, second = json.loads((tmp_path / "list.json").read_text())
    assert (first["status"], first["workers"]) == ("budget", 2) and "accuracy" in first["last"]
    assert second["command"] == "covey run easgd(period=2)"
    assert "no records in" in told(runner, "list", "--runs", tmp_path)


@pytest.mark.parametrize("width", [50, 80, 130])
def test_no_score_is_cut(width: int, runs: Path) -> None:
    """However wide the terminal is."""
    names = ("rmse", "mae", "r2", "ema_rmse", "ema_mae", "ema_r2")
    records = recorded_runs(runs)[0]
    for record in records:
        record.history[-1].update(dict.fromkeys(names, 0.123456))
    with (console := SafeConsole(width=width)).capture() as shown:
        print_runs(console, runs, records)
    lines = shown.get().splitlines()
    assert all(len(line) <= width for line in lines)
    for name in names:
        found = [line for line in lines if re.search(rf"(^| ){name} 0.1235( |$)", line)]
        assert len(found) == len(records), f"{name}: {lines}"


def test_without_a_folder_the_records_are_where_runs_are_recorded(
    runner: CliRunner, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "no records in runs" in told(runner, "list")
    (tmp_path / "runs").symlink_to(runs)
    assert told(runner, "list").count("budget") == 2
    monkeypatch.setenv("COVEY_RUNS", str(tmp_path / "mine"))
    assert "mine" in told(runner, "list")
    monkeypatch.setenv("COVEY_RUNS", str(runs))
    (tmp_path / "runs").unlink()
    assert told(runner, "list").count("budget") == 2


def test_show(runner: CliRunner, runs: Path) -> None:
    shown = told(runner, "show", "easgd", "--runs", runs)
    assert "covey run easgd(period=2)" in shown and "it ran to the end" in shown and "source" in shown


def test_compare(runner: CliRunner, runs: Path) -> None:
    shown = told(runner, "compare", "bsp", "easgd", "--runs", runs)
    names = [line.split()[0] for line in shown.splitlines() if line[:1].isalpha()]
    assert {"strategy", "status", "time", "score", "speed", "sent"} <= set(names)
    assert not {"task", "seed", "commit", "torch"} & set(names), "only what differs is shown of what was asked"


def test_rm_removes_what_has_ended(runner: CliRunner, tmp_path: Path) -> None:
    covey.fit(DIGITS, "bsp", 2, engine="simulated", steps=1, runs=tmp_path)
    record = named(tmp_path, "bsp")
    (record.path / "journal.jsonl").unlink()
    running = Journal(record.path / "journal.jsonl", print)
    done = runner.invoke(app, ["runs", "rm", "bsp", "--runs", str(tmp_path)])
    assert done.exit_code == 2 and "is running: stop it first" in done.stderr
    assert "running" in told(runner, "list", "--runs", tmp_path)
    running.close()
    assert "removed" in told(runner, "rm", "bsp", "--runs", tmp_path) and not record.path.exists()


def test_a_record_that_is_named_twice_is_removed_once(runner: CliRunner, tmp_path: Path) -> None:
    covey.fit(DIGITS, "bsp", 2, engine="simulated", steps=1, runs=tmp_path)
    record = named(tmp_path, "bsp")
    shown = told(runner, "rm", "bsp", record.path.name, "--runs", tmp_path)
    assert shown.count("removed") == 1 and not record.path.exists()


def test_where_one_name_is_wrong_nothing_is_removed(runner: CliRunner, tmp_path: Path) -> None:
    covey.fit(DIGITS, "bsp", 2, engine="simulated", steps=1, runs=tmp_path)
    record = named(tmp_path, "bsp")
    done = runner.invoke(app, ["runs", "rm", "bsp", "nobody", "--runs", str(tmp_path)])
    assert done.exit_code == 2 and "there is no record 'nobody'" in done.stderr and record.path.exists()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["show", "nobody"], "there is no record 'nobody'"),
        (["compare", "bsp"], "takes two or more records"),
        (["rm", "../../etc"], "there is no record"),
    ],
)
def test_bad_input(runner: CliRunner, runs: Path, words: list[str], reason: str) -> None:
    done = runner.invoke(app, ["runs", *words, "--runs", str(runs)])
    assert done.exit_code == 2 and reason in done.stderr.replace("\n", " ")


def test_runs_and_no_record_contradict(runner: CliRunner, tmp_path: Path) -> None:
    done = runner.invoke(app, ["run", DIGITS, "--runs", str(tmp_path), "--no-record"])
    assert done.exit_code == 2 and "give one of them" in done.stderr


def test_the_table_says_where_the_record_is(runner: CliRunner, tmp_path: Path) -> None:
    done = runner.invoke(app, ["simulate", DIGITS, "--steps", "1", "--runs", str(tmp_path / "kept")])
    assert done.exit_code == 0 and "record" in done.stdout
    (one,) = (tmp_path / "kept").iterdir()
    assert one.name in done.stdout.replace("\n", "").replace(" ", "")
