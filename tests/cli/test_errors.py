from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from covey.cli import app
from covey.errors import CheckpointError, PlanError, RoleFailed, Stalled
from covey.spec import SpecError
from tests.cli.conftest import Calls, ResultMaker
from tests.warm import Warm


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--until", "accuracy"], "accuracy:0.9"),
        (["--until", "accuracy>=good"], "needs a number"),
        (["--stall", "5x"], "--stall 5x: cannot read the duration '5x'; write for example 20ms"),
        (["--stall", "0s"], "write for example 30s"),
        (["--checkpoint", "kept", "--every", "often"], "--every often: cannot read"),
        (["--every", "5s"], "say where with --checkpoint DIR"),
        (["--strategy", "ssp(bound"], "^ expected '='"),
        (["--strategy", "ssp(bound=1|2)"], "grid"),
        (["--engine", "lo cal"], "expected '(' or the end"),
        (["--json", "/no/such/folder/result.json"], "mkdir -p /no/such/folder"),
        (["--json", "/tmp"], "is a folder"),
        (["--workers", "many"], "--workers many: write a number, such as 4, or a range, such as 2:8"),
        (["--workers", "4:2"], "write 2:4"),
        (["--workers", "0"], "--workers"),
        (["--steps", "3.5"], "3.5: write a whole number from 1 up, such as 4"),
        (["--epochs", "0"], "0: write a whole number from 1 up, such as 4"),
        (["--seed", "-1"], "-1: write a whole number from 0 up, such as 4"),
        (["--quiet", "--verbose"], "--quiet and --verbose"),
        (["--wokers", "3"], "--workers"),
    ],
)
def test_bad_flags_say_what_would_work(runner: CliRunner, calls: Calls, flags: list[str], said: str) -> None:
    shown = runner.invoke(app, ["run", "task.py", *flags])
    assert shown.exit_code == 2
    assert said in shown.stderr
    assert "Traceback" not in shown.stderr
    assert not calls.asked, "nothing was started"


def test_a_share_that_is_no_number_is_shown(runner: CliRunner) -> None:
    shown = runner.invoke(app, ["federate", "simulate", "task.py", "--over", "much"])
    assert shown.exit_code == 2 and "much: write a number, such as 0.5" in shown.stderr


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (PlanError("this cannot work; that would"), 2),
        (SpecError("bps", 0, "no strategy 'bps'"), 2),
        (CheckpointError("torn"), 2),
        (Stalled("worker 0 waits for worker 1"), 1),
    ],
)
def test_what_goes_wrong_is_said_once(runner: CliRunner, calls: Calls, error: Exception, code: int) -> None:
    calls.raised = error
    shown = runner.invoke(app, ["run", "task.py"])
    assert shown.exit_code == code
    assert shown.stderr.count("Error:") == 1
    assert str(error).splitlines()[-1] in shown.stderr
    assert "Traceback" not in shown.stderr
    assert shown.stdout == ""


def test_the_caret_stays_under_its_character(runner: CliRunner, calls: Calls) -> None:
    shown = runner.invoke(app, ["run", "task.py", "--strategy", "ssp(bound=3) plus topk"])
    _, spec, caret = shown.stderr.splitlines()
    assert spec[caret.index("^")] == "p"


def test_users_traceback_is_printed_as_it_is(runner: CliRunner, calls: Calls) -> None:
    calls.raised = RoleFailed("Traceback (most recent call last):\n  File 'model.py', line 3\nValueError: bad")
    shown = runner.invoke(app, ["run", "task.py", "--quiet"])
    assert shown.exit_code == 1
    assert shown.stderr == f"{calls.raised}\n"


@pytest.mark.parametrize("voice", ["--quiet", "--verbose"])
def test_what_a_role_says_cannot_move_a_terminal(runner: CliRunner, calls: Calls, voice: str) -> None:
    calls.raised = RoleFailed("worker 1 failed: \x1b]0;title\x07 bad\r\n\n\tline")
    shown = runner.invoke(app, ["run", "task.py", voice])
    assert "worker 1 failed: ?]0;title? bad?\n\n\tline\n" in shown.stderr


def test_verbose_adds_coveys_traceback(runner: CliRunner, calls: Calls) -> None:
    calls.raised = PlanError("this cannot work")
    shown = runner.invoke(app, ["run", "task.py", "--verbose"])
    assert shown.exit_code == 2
    assert "training.py" in shown.stderr


def test_interruption_outside_the_run(runner: CliRunner, calls: Calls) -> None:
    calls.raised = KeyboardInterrupt()
    shown = runner.invoke(app, ["run", "task.py"])
    assert shown.exit_code == 130
    assert "Interrupted." in shown.stderr


def test_interrupted_run_shows_how_far_it_came(runner: CliRunner, calls: Calls, result: ResultMaker) -> None:
    calls.result = result(stopped="interrupted", reached=None)
    shown = runner.invoke(app, ["run", "task.py"])
    assert shown.exit_code == 130
    assert "interrupted" in shown.stdout and "51,200 samples" in shown.stdout


def test_unreached_target_is_no_failure(runner: CliRunner, calls: Calls, result: ResultMaker) -> None:
    calls.result = result(stopped="budget", reached=None)
    shown = runner.invoke(app, ["run", "task.py", "--until", "accuracy:0.99"])
    assert shown.exit_code == 0
    assert "accuracy>=0.99 NOT reached: the best was 0.9532" in shown.stdout


def test_quiet_says_nothing_and_json_is_written(runner: CliRunner, calls: Calls, tmp_path: Path) -> None:
    file = tmp_path / "result.json"
    shown = runner.invoke(app, ["run", "task.py", "--quiet", "--json", str(file)])
    assert (shown.exit_code, shown.output) == (0, "")
    assert json.loads(file.read_text())["schema"] == "covey.result/1"
    assert list(tmp_path.iterdir()) == [file]


def test_json_to_the_output_is_alone_there(runner: CliRunner, calls: Calls) -> None:
    shown = runner.invoke(app, ["run", "task.py", "--json", "-"])
    assert json.loads(shown.stdout)["workers"] == 4
    assert "easgd" in shown.stderr


@pytest.mark.parametrize(
    ("text", "shown_part"),
    [("def f(:\n", "SyntaxError"), ("import no_such_thing\n", "No module named 'no_such_thing'"), ("1 / 0\n", "1 / 0")],
)
def test_users_file_that_fails(runner: CliRunner, tmp_path: Path, text: str, shown_part: str) -> None:
    file = tmp_path / "mine.py"
    file.write_text(text)
    shown = runner.invoke(app, ["run", str(file), "--quiet"])
    assert shown.exit_code == 1
    assert shown_part in shown.stderr and "mine.py" in shown.stderr
    assert "covey/task.py" not in shown.stderr and "please report" not in shown.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--engine", "nonsense"], "There are: lab, local, mpi, ray, simulated, spark, torchrun"),
        (["--steps", "3", "--epochs", "2"], "--epochs"),
        (["--strategy", "bps"], "did you mean 'bsp'"),
    ],
)
def test_refused_by_the_run_itself(runner: CliRunner, arguments: list[str], said: str) -> None:
    shown = runner.invoke(app, ["run", "examples/digits.py", *arguments])
    assert shown.exit_code == 2
    assert said in shown.stderr


def test_an_output_that_is_full_is_no_mistake_of_ours(warm: Warm, tmp_path: Path) -> None:
    with open("/dev/full", "w") as full, (tmp_path / "err").open("w") as told:
        command = warm.start(["-m", "covey", "strategies"], tmp_path, output=[full.fileno(), told.fileno()])
        assert command.wait(60) == 1
    assert (tmp_path / "err").read_text() == "Error: the output could not be written: No space left on device\n"
