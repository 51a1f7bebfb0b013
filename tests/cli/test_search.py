"""covey search: the table, what to type, and what is written."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from covey.cli import app

DIGITS = "examples/digits.py"


def rows(runner: CliRunner, *more: str) -> dict[str, dict[str, object]]:
    shown = runner.invoke(app, ["search", DIGITS, "--machines", "2", "--counted", "--quiet", "--json", "-", *more])
    assert shown.exit_code == 0, shown.output
    told = json.loads(shown.stdout)
    assert told["schema"] == "covey.search/1" and told["machines"] == 2 and told["counted"]
    return {row["plan"]: row for row in told["layouts"]}


def test_the_table_says_what_to_type(runner: CliRunner) -> None:
    shown = runner.invoke(app, ["search", DIGITS, "--machines", "2", "--counted", "--seconds", "20"])
    assert shown.exit_code == 0, shown.output
    lines = shown.stdout.splitlines()
    assert lines[0].split() == ["plan", "step", "virtual", "samples/s", "memory", "bytes", "found", "by"]
    assert lines[1].startswith("data parallel") and max(map(len, lines[:6])) <= 80
    assert lines[1].split()[-1] == "given", "no column is cut off"
    assert "best  " in shown.stdout and f"covey run {DIGITS} --strategy allreduce --workers 2" in shown.stdout


def test_the_best_command_comes_first_and_none_for_what_does_not_fit(runner: CliRunner) -> None:
    file = ["--memory", "70kB", "--bandwidth", "10mbit", "--compute", "1ms"]
    found = rows(runner, *file)
    assert found["data parallel"]["memory"] > 70_000, "it does not fit"  # type: ignore[operator]
    shown = runner.invoke(app, ["search", DIGITS, "--machines", "2", "--counted", *file])
    said = shown.stdout.partition("best  ")[2].splitlines()[0]
    (best,) = [plan for plan in found if re.fullmatch(rf"{re.escape(plan)}(, [0-9.]+ times .*)?", said)]
    (first,) = [line for line in shown.stdout.splitlines() if line.startswith("run   ")]
    assert found[best]["command"] == first.removeprefix("run   ")
    assert "--strategy allreduce --workers 2" not in shown.stdout


def test_in_a_pipe_no_column_is_cut_off(runner: CliRunner) -> None:
    """With data parallelism over the limit, and a plan for study."""
    flags = ["--memory", "70kB", "--bandwidth", "10mbit", "--compute", "1ms", "--method", "hill"]
    shown = runner.invoke(app, ["search", DIGITS, "--machines", "2", "--counted", "--verbose", *flags])
    assert shown.exit_code == 0, shown.output
    table = shown.stdout.partition("\nbest  ")[0]
    rows = [line for line in table.splitlines()[1:] if re.search(r" [0-9.]+ k?B ", line)]  # others go on with a plan
    ways = {line.split()[-1] for line in rows}
    assert ways == {"given", "formulas", "planner", "hill"} and max(map(len, rows)) <= 80
    assert "too much" in table and "study only" in table


def test_a_batch_takes_what_it_takes_here_unless_compute_is_said(runner: CliRunner) -> None:
    counted, faster, said = (
        rows(runner, *more)["one machine alone"]["step"]
        for more in ([], ["--bandwidth", "10gbit"], ["--bandwidth", "10gbit", "--compute", "10ms"])
    )
    assert counted == faster != pytest.approx(0.01) and said == pytest.approx(0.01)


def test_every_command_of_the_table_runs(runner: CliRunner) -> None:
    """In virtual time; tests/parallelism runs the best one on processes."""
    found = rows(runner, "--method", "all", "--seconds", "4", "--memory", "1MB")
    assert next(iter(found)) == "data parallel" and len(found) >= 5
    for plan, row in found.items():
        assert (row["command"] is None) == (not row["runs"]), plan
        if row["command"]:
            words = shlex.split(str(row["command"]))
            assert words[:3] == ["covey", "run", DIGITS]
            ran = runner.invoke(app, ["simulate", *words[2:], "--steps", "1", "--quiet"])
            assert ran.exit_code == 0, (plan, ran.output)


def test_the_saved_plan_is_the_fastest_that_runs(runner: CliRunner, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    found = rows(runner, "--save", str(file))
    kept = json.loads(file.read_text())
    able = [row for row in found.values() if row["runs"] and row["judged"]]
    assert kept["schema"] == "covey.plan/1" and kept["runs"] and kept["command"]
    assert kept["pace"] == min(row["pace"] for row in able)


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (["--machines", "1"], "one machine has one layout"), (["--method", "luck"], "there are dp, mcmc, hill, policy"),
        (["--memory", "lots"], "lots"), (["--memory", "1kB", "--counted"], "no layout of 2 machines fits in 1 kB"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(runner: CliRunner, flags: list[str], why: str) -> None:
    shown = runner.invoke(app, ["search", DIGITS, *flags])
    assert shown.exit_code == 2 and why in " ".join(shown.stderr.split())
