"""The examples of docs/federated.md and of the hospitals' tutorial with real clients, as they are written there."""

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
@pytest.mark.parametrize(("page", "section", "clients"), [
    ("federated.md", "With real clients", 2), ("tutorials/hospitals.md", "From the rehearsal to the houses", 3),
])  # fmt: skip
def test_the_example_with_real_clients(page: str, section: str, clients: int, tmp_path: Path) -> None:
    text = (ROOT / "docs" / page).read_text().partition(f"## {section}")[2]
    data, script = (re.search(rf"```{kind}\n(.*?)```", text, re.DOTALL) for kind in ("python", "sh"))
    assert script
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    (tmp_path / "mine.py").write_text(data[1] if data else "")
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
    assert "3 committed" in done.stdout and done.stdout.count("the run is over") == clients, done.stdout
    assert load_file(tmp_path / "model.safetensors")
