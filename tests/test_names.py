"""Options are called as the person who asked writes them, and misspelt names are answered with the nearest."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from inspect import signature
from pathlib import Path

import pytest
from typer.testing import CliRunner

import covey
from covey.checkpoint import CheckpointDirectory
from covey.cli import app
from covey.compare import compare
from covey.errors import CheckpointError, PlanError
from covey.names import TYPED, option, typed

SOURCE = Path(covey.__file__).parent
ROOMS = ("run", "compare", "checkpoint", "strategy", "model", "central", "decentral", "servers", "engines/process")
COMMANDS = re.compile(r"covey (launch|run|simulate)|torchrun|mpirun")


def test_flags_where_a_command_was_typed_and_keywords_elsewhere() -> None:
    asked = [("resume", "DIR"), ("max_failures", 3), ("folder", Path("kept")), ("insecure", True), ("servers", None)]
    assert [option(*one) for one in asked] == [
        'resume="DIR"', "max_failures=3", 'folder="kept"', "insecure=True", "servers=…",
    ]  # fmt: skip
    with typed(), typed():
        assert [option(*one) for one in asked] == [
            "--resume DIR", "--max-failures 3", "--continue kept", "--insecure", "--servers",
        ]  # fmt: skip
    assert TYPED not in os.environ


def test_processes_that_a_command_starts_name_flags_too() -> None:
    show = [sys.executable, "-c", "from covey.names import option; print(option('stall'))"]
    with typed():
        assert subprocess.run(show, stdout=subprocess.PIPE, text=True, check=True).stdout.strip() == "--stall"


def test_one_mistake_has_two_wordings(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match='on_failure="restart" needs checkpoint="DIR": '):
        covey.fit("examples/digits.py", on_failure="restart")
    told = CliRunner().invoke(app, ["run", "examples/digits.py", "--on-failure", "restart"])
    assert told.exit_code == 2 and "--on-failure restart needs --checkpoint DIR: " in told.stderr
    with pytest.raises(CheckpointError, match="holds no checkpoint: did the run have checkpoint=…"):
        CheckpointDirectory(tmp_path).newest()
    with pytest.raises(PlanError, match='repeat=3 fixes the number of runs, so within="5m" would have no effect'):
        compare("examples/digits.py", "bsp", repeat=3, within="5m")


def test_no_message_names_a_flag_by_itself() -> None:
    """Else somebody who has called a function is told to write what only a command line takes."""
    keywords = {*signature(covey.fit).parameters, *signature(covey.join).parameters, *signature(compare).parameters}
    flags = "|".join(sorted(name.replace("_", "-") for name in keywords))
    named = re.compile(rf"(?<![\w-])--({flags})\b")
    found = []
    for room in ROOMS:
        for file in (SOURCE / room).rglob("*.py"):
            tree = ast.parse(file.read_text())
            docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
            docs |= {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
            for node in ast.walk(tree):
                if isinstance(node, ast.JoinedStr | ast.Constant) and id(node) not in docs:
                    text = ast.unparse(node)
                    if named.search(text) and not COMMANDS.search(text):
                        found.append(f"{file.relative_to(SOURCE)}:{node.lineno}: {text}")
    assert found == []
