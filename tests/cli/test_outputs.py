"""What a run has found is not lost where one of its files cannot be written."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

import covey
from covey.cli import app
from covey.errors import SaveError
from covey.task import load_task
from tests.cli.conftest import Calls

DIGITS = "examples/digits.py"
SHORT = ["--workers", "2", "--steps", "2"]


@pytest.fixture
def full(tmp_path: Path) -> str:
    """A file on which nothing can be written; a mistake replaces this link, and not the machine's device."""
    place = tmp_path / "full"
    place.symlink_to("/dev/full")
    return str(place)


@pytest.mark.parametrize("command", ["run", "simulate", "launch"])
def test_save_is_checked_before_training(runner: CliRunner, calls: Calls, tmp_path: Path, command: str) -> None:
    told = runner.invoke(app, [command, DIGITS, "--save", str(tmp_path)])
    assert told.exit_code == 2 and "is a folder; name a file in it" in told.stderr and calls.asked == {}


def test_fit_checks_save_before_training(tmp_path: Path) -> None:
    with pytest.raises(covey.PlanError, match="save=.* is a folder"):
        covey.fit(DIGITS, "bsp", 2, engine="simulated", steps=2, save=tmp_path)


def test_a_model_that_cannot_be_saved_takes_nothing_else_along(runner: CliRunner, calls: Calls, tmp_path: Path) -> None:
    calls.raised = SaveError("--save m could not be written: No space left on device", calls.result)
    found = tmp_path / "r.json"
    told = runner.invoke(app, ["run", DIGITS, "--save", str(tmp_path / "m"), "--json", str(found)])
    assert told.exit_code == 1 and "--save m could not be written: No space left" in told.stderr
    assert "mistake in covey" not in told.stderr and "easgd" in told.stdout
    assert f"{tmp_path / 'm'}" not in told.stdout and json.loads(found.read_text())["samples"] == 51200


def test_a_result_survives_a_full_disk(full: str) -> None:
    with pytest.raises(SaveError, match="save=.*full.* could not be written: .*No space left") as raised:
        covey.fit(DIGITS, "bsp", 2, engine="simulated", steps=2, save=full)
    assert raised.value.result.weights and raised.value.result.stopped == "budget"


def test_a_model_and_a_result_have_the_mode_that_the_umask_leaves(tmp_path: Path) -> None:
    mask = os.umask(0o027)
    try:
        command = ["simulate", DIGITS, *SHORT, "--save", str(tmp_path / "model"), "--json", str(tmp_path / "json")]
        told = CliRunner().invoke(app, command)
    finally:
        os.umask(mask)
    assert told.exit_code == 0, told.output
    assert {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {"model": 0o640, "json": 0o640}


def test_a_link_at_the_name_of_a_partial_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    (tmp_path / ".x.partial").symlink_to("precious")
    covey.fit(DIGITS, "bsp", 2, engine="simulated", steps=2, save=tmp_path / "x")
    assert (tmp_path / "precious").read_text() == "mine"
    assert sorted(os.listdir(tmp_path)) == [".x.partial", "precious", "x"]


def test_json_that_cannot_be_written_leaves_the_table(runner: CliRunner, calls: Calls, full: str) -> None:
    told = runner.invoke(app, ["run", DIGITS, "--json", full])
    assert told.exit_code == 1 and "easgd" in told.stdout and full not in told.stdout
    assert told.stderr.count(f"Error: --json {full} could not be written: No space left on device") == 1


def test_a_comparison_shows_its_table_and_says_of_each_file(runner: CliRunner, full: str) -> None:
    files = ["--json", full, "--report", full]
    told = runner.invoke(app, ["compare", DIGITS, "--strategies", "bsp,easgd", "--simulate", *SHORT, *files])
    assert told.exit_code == 1 and "easgd" in told.stdout, told.output
    assert f"--json {full} could not" in told.stderr and f"--report {full} could not" in told.stderr


def test_a_comparison_of_which_nothing_came_has_failed(runner: CliRunner) -> None:
    several = ("hogwild", "hogwild,bsp")
    told = [runner.invoke(app, ["compare", DIGITS, "--strategies", one, "--simulate", *SHORT]) for one in several]
    assert [one.exit_code for one in told] == [1, 0], [one.output for one in told]


@pytest.mark.parametrize("command", ["run", "simulate", "compare", "advise"])
def test_a_task_file_that_ends_the_program_is_told(runner: CliRunner, tmp_path: Path, command: str) -> None:
    file = tmp_path / "leaves.py"
    file.write_text("import sys; sys.exit(0)")
    told = runner.invoke(app, [command, str(file)])
    assert told.exit_code == 2 and f"{file} called sys.exit(0) while it was imported" in told.stderr.replace("\n", "")


def test_a_slow_task_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("covey.reminders.EVERY", 0.01)
    file, said = tmp_path / "slow.py", []
    file.write_text(f"import time; time.sleep(0.2)\n{Path(DIGITS).read_text()}")
    load_task(str(file), said.append)
    assert 1 <= len(said) <= 5, "after 0.01 s, then after twice as long each time: not every 0.01 s"
    assert said[0] == f"importing {file}, 0 s so far"


@pytest.mark.parametrize("flag", ["--json", "--report", "--save"])
@pytest.mark.parametrize("target", ["real/file", "real/none"])
def test_a_link_is_followed_and_stays(runner: CliRunner, tmp_path: Path, flag: str, target: str) -> None:
    """Else the file behind it would stay old, and the link be lost."""
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "file").write_text("old")
    link = tmp_path / "link"
    link.symlink_to(target)
    if flag == "--report":
        asked = ["compare", DIGITS, "--strategies", "bsp", "--simulate", *SHORT]
    else:
        asked = ["simulate", DIGITS, *SHORT]
    told = runner.invoke(app, [*asked, flag, str(link)])
    assert told.exit_code == 0, told.output
    assert link.is_symlink() and (tmp_path / target).stat().st_size > 100
    assert set(os.listdir(tmp_path)) == {"real", "link"} and set(os.listdir(tmp_path / "real")) <= {"file", "none"}


def test_a_link_into_a_folder_that_is_not_there_is_refused(runner: CliRunner, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to("none/file")
    told = runner.invoke(app, ["simulate", DIGITS, *SHORT, "--json", str(link)])
    assert told.exit_code == 2 and f"there is no folder {tmp_path / 'none'}" in told.stderr, told.output


def test_two_files_cannot_both_be_the_output(runner: CliRunner, calls: Calls) -> None:
    told = runner.invoke(app, ["run", DIGITS, "--json", "-", "--profile", "-"])
    assert told.exit_code == 2 and "are both to be the output: name a file for one" in told.stderr
    assert calls.asked == {}


@pytest.mark.parametrize(("every", "shown"), [("1h", False), ("1us", True)])
def test_a_folder_of_checkpoints_is_shown_where_there_is_one(
    runner: CliRunner, tmp_path: Path, every: str, shown: bool
) -> None:
    place = tmp_path / "kept"
    told = runner.invoke(app, ["simulate", DIGITS, *SHORT, "--checkpoint", str(place), "--every", every, "--no-record"])
    assert told.exit_code == 0 and place.is_dir() and ("checkpoint " in told.stdout) == shown
