"""Where processes cannot run (macOS, Windows) the commands that only compute do; such a system is emulated here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.tune.test_rehearsing import study

EMULATED = """
import json, os, platform, sys, torch
for name in ("fork", "memfd_create", "eventfd", "sched_getaffinity"):
    delattr(os, name)
platform.system = lambda: "Darwin"
from typer.testing import CliRunner
from covey.cli import app
found = []
for words in json.loads(sys.argv[1]):
    done = CliRunner().invoke(app, words)
    found.append([words[0], done.exit_code, done.output])
print(json.dumps(found))
"""


def covey(*commands: str) -> list[tuple[str, int, str]]:
    words = [command.split() for command in commands]
    done = subprocess.run(
        [sys.executable, "-c", EMULATED, json.dumps(words)], check=False, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return [(name, code, output) for name, code, output in json.loads(done.stdout.splitlines()[-1])]


def test_what_only_computes_works_and_what_needs_processes_says_so(tmp_path: Path) -> None:
    (tmp_path / "study.json").write_text(study().to_json())
    cluster = "--bandwidth 100mbit --compute 10ms"
    found = covey(
        "simulate examples/digits.py --workers 2 --steps 2 --no-record",
        f"advise examples/digits.py --workers 4 {cluster} --quick",
        f"scale examples/digits.py --strategies bsp {cluster}",
        "strategies bsp",
        f"tune {tmp_path / 'study.json'} --rehearse",
        "run examples/digits.py --workers 2 --steps 2",
        "compare examples/digits.py --workers 2 --steps 2",
        "launch examples/own_loop.py --workers 2",
    )
    for name, code, output in found[:5]:
        assert code == 0, f"{name}: {output}"
    for name, code, output in found[5:]:
        assert code == 2, f"{name}: {output}"
        assert "need Linux: Darwin has no fork" in " ".join(output.split()) and "covey simulate" in output
