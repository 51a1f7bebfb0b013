"""The command as a person runs it: a process of its own, on real roles."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from covey.simulate import load
from tests.warm import Warm

COVEY = [sys.executable, "-m", "covey"]
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(warm: Warm) -> Run:
    """The command with these arguments, from the folder of the project."""

    def command(*arguments: str, seconds: float = 120) -> subprocess.CompletedProcess[str]:
        return warm.run(["-m", "covey", *arguments], Path.cwd(), seconds)

    return command


@pytest.mark.parametrize("command", ["run", "simulate"])
def test_trains_the_digits(run: Run, command: str, tmp_path: Path) -> None:
    file, model = tmp_path / "result.json", tmp_path / "model.safetensors"
    done = run(command, "examples/digits.py", "--until", "accuracy:0.9", "--json", str(file), "--save", str(model))
    assert done.returncode == 0, done.stderr
    assert "accuracy>=0.9 reached after" in done.stdout and "time spent" in done.stdout
    assert " samples/s" in done.stderr, "the progress goes to stderr"
    told = json.loads(file.read_text())
    assert told["stopped"] == "target" and told["command"].startswith(f"covey {command} examples/digits.py")
    assert model.stat().st_size > 0


def test_a_loss_that_raises_shows_the_users_traceback_once(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "broken.py"
    file.write_text(
        """
import covey, torch

def broken_loss(output, y):
    raise ValueError("this loss is broken")

task = covey.Task(
    model=lambda: torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10)),
    data=covey.data.digits(),
    optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
    loss=broken_loss,
)
"""
    )
    done = run("run", str(file), "--workers", "2")
    assert done.returncode == 1
    assert done.stderr.count("Traceback (most recent call last)") == 1
    assert 'raise ValueError("this loss is broken")' in done.stderr
    assert done.stdout == ""


def test_calibrates_this_machine_for_a_task(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "cluster.toml"
    done = run(
        "calibrate",
        "examples/digits.py",
        "-o",
        str(file),
        "--batches",
        "8",
        "--json",
        str(tmp_path / "it.json"),
        seconds=280,
    )
    assert done.returncode == 0, done.stderr
    assert "batch" in done.stdout and f"written to {file}" in done.stdout
    assert file.read_text().startswith("# Measured by: covey calibrate examples/digits.py")
    told = json.loads((tmp_path / "it.json").read_text())
    assert 0 < told["compute"] < 1 and 0 < told["handling"]["receive"]["each"] < 0.1
    # A byte between machines is encrypted on a thread of the sockets'; one that stays in memory costs no such time.
    assert told["link"]["cpu"]["byte"] > told["local"]["cpu"]["byte"] >= 0
    assert load(file).charges_cpu, "simulate and compare read it"


def test_ctrl_c_on_a_terminal_ends_with_the_table() -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*COVEY, "run", "examples/digits.py", "--epochs", "100000"],
        stderr=theirs, stdout=subprocess.PIPE, env={**os.environ, "TERM": "xterm"}, text=True,
    )  # fmt: skip
    os.close(theirs)
    seen = ""
    deadline = time.monotonic() + 60
    while "samples/s" not in seen and time.monotonic() < deadline:
        seen += os.read(ours, 1 << 16).decode(errors="replace")
    process.send_signal(signal.SIGINT)
    try:
        while more := os.read(ours, 1 << 16):
            seen += more.decode(errors="replace")
    except OSError:  # Linux says so when the last writer is gone
        pass
    output, _ = process.communicate(timeout=60)
    os.close(ours)
    assert process.returncode == 130, seen
    assert "interrupted" in output and "time spent" in output
    assert seen.rindex("\x1b[?25h") > seen.rindex("\x1b[?25l"), "the cursor is shown again"
