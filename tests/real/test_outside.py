"""Strategies from outside run on real processes: from a file, and from the program that calls covey.fit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.warm import Warm

ROOT = Path(__file__).parents[2]

SCRIPT = """
import covey

{plugin}
if __name__ == "__main__":
    found = {{}}
    for engine in ("simulated", "local"):
        result = covey.fit("{root}/examples/digits.py", Shifting(weight=0.25), 2, engine=engine, steps=3)
        found[engine] = result.weights
        print(result.engine, result.strategy, result.updates)
    for name, value in found["local"].items():
        assert value.equal(found["simulated"][name]), name
"""


def run(*command: str, **more: str) -> str:
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, cwd=ROOT, timeout=300,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", **more},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_an_object_of_the_main_program_trains_alike_on_processes_and_in_virtual_time(
    tmp_path: Path, warm: Warm
) -> None:
    """Its classes and messages exist in no file that a role could import."""
    script = tmp_path / "own.py"
    plugin = (ROOT / "examples/plugins/own_strategies.py").read_text()
    script.write_text(SCRIPT.format(plugin=plugin, root=ROOT))
    done = warm.run([script], ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split("\n")[:2] == ["simulated shifting(weight=0.25) 6", "local shifting(weight=0.25) 6"]


PLUGIN = ["--plugin", "examples/plugins/own_strategies.py", "--workers", "2", "--steps", "3", "--threads", "1"]


@pytest.mark.full
@pytest.mark.parametrize("strategy", ["median", "shifting", "bsp + scaled_signs"])
@pytest.mark.parametrize("engine", ["local", "torchrun"])
def test_a_file_of_strategies_runs_on_processes(strategy: str, engine: str) -> None:
    command = ["run", "examples/digits.py", *PLUGIN, "--engine", engine, "--strategy", strategy]
    assert strategy in run(sys.executable, "-m", "covey", *command)


@pytest.mark.full
def test_a_file_of_strategies_serves_a_loop_of_ones_own() -> None:
    command = ["launch", *PLUGIN, "--strategy", "median", "examples/own_loop.py"]
    assert "median" in run(sys.executable, "-m", "covey", *command)
