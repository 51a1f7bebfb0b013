"""`simulate --faults SEED` does several runs of its own: what goes with one run is refused, not ignored."""

from __future__ import annotations

from inspect import signature
from pathlib import Path

import pytest
from typer.testing import CliRunner

from covey.cli import app, simulate

DIGITS = "examples/digits.py"
REFUSED = {
    "until": "accuracy:0.9", "scores": "2", "link_rate": "1mbit", "timing_only": None, "save": "model",
    "json": "r.json", "checkpoint": "kept", "resume": "kept", "on_failure": "restart", "max_failures": "3",
    "log": "csv:a.csv", "runs": "records",
}  # fmt: skip
HEEDED = {
    "task", "strategy", "plugin", "workers", "servers", "seed", "epochs", "steps", "cluster", "bandwidth", "latency",
    "compute", "jitter", "slow", "kill", "faults", "quiet", "verbose",
    "no_record",  # nothing is recorded
    "every",  # refused without --checkpoint, which is refused
}  # fmt: skip


def test_every_flag_is_heeded_or_refused() -> None:
    assert set(signature(simulate.command).parameters) == HEEDED | set(REFUSED)


@pytest.mark.parametrize("name", REFUSED)
def test_what_goes_with_one_run(
    runner: CliRunner, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    digits = str(Path(DIGITS).resolve())
    monkeypatch.chdir(tmp_path)
    flag, value = f"--{name.replace('_', '-')}", REFUSED[name]
    told = runner.invoke(app, ["simulate", digits, "--faults", "3", flag, *([value] if value else [])])
    assert told.exit_code == 2 and f"{flag} goes with one run" in told.stderr, told.stderr
