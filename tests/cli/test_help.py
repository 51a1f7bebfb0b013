from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import is_dataclass
from inspect import signature, unwrap

import pytest
from typer import Context
from typer.core import TyperGroup
from typer.main import get_command
from typer.models import CommandInfo
from typer.testing import CliRunner

import covey
from covey.cli import app
from covey.cli.tables import overview

COMMANDS = ("run", "simulate", "calibrate", "launch", "strategies", "doctor")
FLAGS = {
    "run": "--strategy --workers --servers --engine --epochs --steps --until --seed --threads --save --checkpoint "
    "--every --resume --on-failure --max-failures --faults --stall --preparers --link-rate",
    "simulate": "--strategy --workers --cluster --bandwidth --latency --compute --jitter --slow --kill --timing-only "
    "--faults --checkpoint --every --resume --on-failure --max-failures",
    "launch": "--strategy --workers --servers --steps --seed --threads --save --stall",
}


def test_help_needs_no_torch() -> None:
    code = """
import sys
from covey.cli import app
from covey.cli.tables import overview
try:
    app(["--help"])
except SystemExit:
    pass
slow = ("torch", "numpy", "zmq", "plotly", "msgspec", "importlib.metadata")
print([name for name in slow if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("[]\n"), done.stdout


@pytest.mark.parametrize(("asked", "status"), [([], 2), (["-h"], 0), (["--help"], 0)])
def test_the_overview_needs_neither_typer_nor_rich(asked: list[str], status: int) -> None:
    code = "import sys; from covey.cli import main\ntry: main()\nfinally: assert not {'typer', 'rich'} & {*sys.modules}"
    done = subprocess.run([sys.executable, "-c", code, *asked], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (status, "") and done.stdout.startswith("Usage: covey [OPTIONS] COMMAND")


def test_the_overview_says_of_each_command_what_typer_says() -> None:
    command = get_command(app)
    assert isinstance(command, TyperGroup)
    first = {name: (one.help or "").split("\n\n")[0] for name, one in command.commands.items()}
    assert {name: " ".join(sentence.split()) for name, sentence in first.items()} == overview.COMMANDS
    assert command.help == overview.PURPOSE
    options = command.get_params(Context(command, **command.context_settings))
    assert {", ".join(sorted(one.opts, key=len)): vars(one)["help"] for one in options} == overview.OPTIONS


@pytest.mark.parametrize("columns", [40, 60, 80, 100])
def test_the_overview_keeps_to_the_terminal(columns: int) -> None:
    shown = overview.overview(columns)
    assert max(map(len, shown.splitlines())) <= columns
    for sentences in (overview.COMMANDS, overview.OPTIONS):
        assert all(f"{name} {sentence}" in " ".join(shown.split()) for name, sentence in sentences.items())


def test_a_reader_of_the_overview_may_leave() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as output:
        command = [sys.executable, "-m", "covey", "--help"]
        done = subprocess.run(command, check=False, stdout=output, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (1, "")


def test_an_overview_that_cannot_be_written_is_one_line() -> None:
    with open("/dev/full", "w") as output:
        command = [sys.executable, "-m", "covey"]
        done = subprocess.run(command, check=False, stdout=output, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (1, "Error: the output could not be written: No space left on device\n")


@pytest.mark.parametrize("asked", [["--help"], ["jobs", "list", "--help"]])
def test_a_terminal_is_not_wider_than_its_number_can_be_read(asked: list[str]) -> None:
    command, wide = [sys.executable, "-m", "covey", *asked], {**os.environ, "COLUMNS": "9" * 5000, "LINES": "9" * 5000}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=wide)
    assert "Usage: covey" in done.stdout and max(map(len, done.stdout.splitlines())) <= 100


def test_covey_is_imported_without_what_only_some_need() -> None:
    code = "import sys, covey; print([name for name in ('torch', 'plotly', 'numba', 'typer') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n", done.stdout


def test_module_is_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "covey", "--help"], capture_output=True, text=True, check=True)
    assert "Usage: covey [OPTIONS] COMMAND" in done.stdout
    assert all(command in done.stdout for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(runner: CliRunner, command: str) -> None:
    shown = runner.invoke(app, [command, "--help"])
    assert shown.exit_code == 0
    flags = set(re.findall(r"--[a-z-]+", shown.output))
    assert flags >= {"--json", "--quiet", "--verbose", *FLAGS.get(command, "").split()}


def test_version(runner: CliRunner) -> None:
    assert runner.invoke(app, ["--version"]).output == f"covey {covey.__version__}\n"


@pytest.mark.parametrize("command", app.registered_commands, ids=lambda command: command.name)
def test_a_command_takes_flags_in_groups(command: CommandInfo) -> None:
    """A person reads at most a dozen names; typer still sees each flag, once."""
    callback = command.callback
    assert callback is not None
    written, seen = signature(unwrap(callback)).parameters, signature(callback).parameters
    assert len(written) <= 13
    assert all(not is_dataclass(flag.annotation) for flag in seen.values())
