"""What does not work on this machine, and the exact fix."""

from __future__ import annotations

import subprocess
import sys
from typing import Literal

State = Literal["ok", "missing", "failed"]

PATIENCE = 60.0  # seconds for an import on a busy machine


class Trouble(Exception):
    """A check that failed: what was found, and the fix."""

    def __init__(self, found: str, fix: str, state: State = "failed") -> None:
        super().__init__(found)
        self.found, self.fix, self.state = found, fix, state


def in_child(code: str) -> str:
    """The output of this code in a new Python: some packages start processes when they are imported."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=False
        )
    except subprocess.TimeoutExpired:
        raise Trouble(f"no answer within {PATIENCE:g} s", "try again on a quieter machine") from None
    if done.returncode:
        words = done.stderr.strip().splitlines() or ["it said nothing"]
        raise Trouble(words[-1], "reinstall it, in this very Python")
    return done.stdout.strip()
