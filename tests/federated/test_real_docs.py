"""The example of docs/federated.md with real clients, as it is written there."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.full
def test_the_example_with_real_clients(tmp_path: Path) -> None:
    section = (ROOT / "docs" / "federated.md").read_text().partition("## With real clients")[2]
    data, script = (re.search(rf"```{kind}\n(.*?)```", section, re.DOTALL) for kind in ("python", "sh"))
    assert data and script
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    (tmp_path / "mine.py").write_text(data[1])
    covey = tmp_path / "bin" / "covey"
    covey.parent.mkdir()
    covey.write_text(f'#!/bin/sh\nexec {sys.executable} -m covey "$@"\n')
    covey.chmod(0o755)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    env = {**os.environ, "PATH": f"{covey.parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        ["bash", "-c", script[1].replace("7070", port)], cwd=tmp_path, env=env, capture_output=True, text=True,
        timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr[-3000:]
    assert "3 committed" in done.stdout and done.stdout.count("the run is over") == 2, done.stdout
    assert load_file(tmp_path / "model.safetensors")
