from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import is_dataclass
from inspect import signature, unwrap

import pytest
from typer.models import CommandInfo
from typer.testing import CliRunner

import covey
from covey.cli import app

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
try:
    app(["--help"])
except SystemExit:
    pass
slow = ("torch", "numpy", "zmq", "plotly", "msgspec", "importlib.metadata")
print([name for name in slow if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("[]\n"), done.stdout


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
