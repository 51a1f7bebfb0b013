"""`simulate --faults SEED` does several runs of its own: what goes with one run is refused, not ignored."""

from __future__ import annotations

from inspect import signature
from pathlib import Path

import pytest
from typer.testing import CliRunner

from covey.check import fault_seeds
from covey.check.fault_seeds import FaultCase, SeedFinding
from covey.cli import app, simulate
from covey.simulate.faults import parse_faults

DIGITS = "examples/digits.py"
REFUSED = {
    "until": "accuracy:0.9", "scores": "2", "link_rate": "1mbit", "timing_only": None, "save": "model",
    "preparers": "2",
    "json": "r.json", "checkpoint": "kept", "resume": "kept", "on_failure": "restart", "max_failures": "3",
    "log": "csv:a.csv", "runs": "records", "best": "accuracy", "patience": "3", "score_every": "5s",
    "register": "digits", "store": "kept_models",
    "spot_trace": str(Path("examples/spot.csv").resolve()),
}  # fmt: skip
HEEDED = {
    "task", "strategy", "plugin", "workers", "servers", "replicas", "seed", "epochs", "steps", "cluster", "bandwidth",
    "latency", "compute", "jitter", "slow", "kill", "faults", "quiet", "verbose",
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


def test_a_seed_that_breaks_something_is_told_with_its_command_and_ends_with_code_1(
    runner: CliRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = parse_faults("kill worker 1@5s")

    def tried(case: FaultCase, seed: int) -> SeedFinding:
        return SeedFinding(seed, case, plan, ["it hangs"] if seed == 4 else [], plan)

    monkeypatch.setattr(fault_seeds, "tried", tried)
    for seeds, code in (("3..5", 1), ("5..6", 0)):
        words = ["simulate", DIGITS, "--slow", "1:4x", "--servers", "2", "--faults", seeds]
        monkeypatch.setattr("sys.argv", ["/usr/bin/covey", *words])
        told = runner.invoke(app, words)
        assert told.exit_code == code, told.output
        assert told.stdout.count("it hangs") == code
        assert not code or f"again: covey simulate {DIGITS} --slow 1:4x --servers 2 --faults 4" in told.stdout
