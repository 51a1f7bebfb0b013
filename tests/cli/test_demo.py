from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from covey.cli import app, compare
from covey.cli.demo import task_file


def test_it_is_the_comparison_of_make_run(runner: CliRunner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: dict[str, Any] = {}
    monkeypatch.setattr("covey.compare.compare", lambda *words, **given: asked.update(given, words=words) or 1 / 0)
    runner.invoke(app, ["demo", "--report", str(tmp_path / "report.html")])
    recipe = Path("Makefile").read_text().partition("\nrun:")[2].partition("\n\n")[0]
    assert "--workers 2 --until 'accuracy>=0.95' --report report.html" in recipe
    assert asked["words"] == (str(task_file()), compare.USUAL, 2) and asked["until"] == "accuracy>=0.95"
    assert asked["engine"] == "local" and asked["repeat"] is None


def test_its_task_is_the_example_and_can_be_copied(runner: CliRunner, tmp_path: Path) -> None:
    def body(file: Path) -> str:
        return file.read_text().partition("task = ")[2].partition("\nif __name__")[0].strip()

    assert body(task_file()) == body(Path("examples/digits.py"))
    shutil.copy(task_file(), tmp_path / "mine.py")
    done = runner.invoke(app, ["simulate", str(tmp_path / "mine.py"), "--workers", "2", "--steps", "2", "--quiet"])
    assert done.exit_code == 0, done.output
