"""--plugin FILE: strategies and codecs of one's own, in every command that takes SPECs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from covey import registry
from covey.cli import app
from covey.exchange.codecs.by_name import CODECS

PLUGIN = "examples/plugins/own_strategies.py"


@pytest.fixture(autouse=True)
def tables() -> Iterator[None]:
    kept = [(table, dict(table)) for table in (registry.STRATEGIES, CODECS, registry._from_outside)]
    yield
    for table, before in kept:
        table.clear()  # type: ignore[attr-defined]
        table.update(before)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("strategies shifting", "averages with one other at every step"),
        ("simulate examples/digits.py --strategy median --steps 2", "median"),
        ("compare examples/digits.py --strategies bsp+scaled_signs,shifting --simulate --steps 2", "shifting"),
    ],
)
def test_names_of_a_file_are_known(runner: CliRunner, command: str, said: str) -> None:
    shown = runner.invoke(app, [*command.split(), "--plugin", PLUGIN])
    assert shown.exit_code == 0, shown.output
    assert said in shown.output


def test_advice_says_how_to_run_a_strategy_of_a_file(runner: CliRunner, tmp_path: Path) -> None:
    asked = ["advise", "examples/digits.py", "--quick", "--compute", "5ms", "--quiet", "--json"]
    shown = runner.invoke(app, [*asked, str(tmp_path / "a.json"), "--plugin", PLUGIN])
    assert shown.exit_code == 0, shown.output
    commands = {one["spec"]: one["command"] for one in json.loads((tmp_path / "a.json").read_text())["choices"]}
    assert commands["shifting"].endswith(f" --plugin {PLUGIN}"), commands


@pytest.mark.parametrize("command", ["run", "simulate", "compare", "advise", "trace"])
def test_a_file_that_is_not_there_is_refused(runner: CliRunner, command: str, tmp_path: Path) -> None:
    shown = runner.invoke(app, [command, "examples/digits.py", "--plugin", str(tmp_path / "own.py")])
    assert shown.exit_code == 2 and "own.py: there is no file" in shown.output.replace("\n", " ")
