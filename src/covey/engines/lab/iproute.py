"""The tools `ip` and `tc`, and whether they can be used here."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterable
from typing import Any, Literal

from covey.errors import CoveyError

TOOLS = ("ip", "tc")


class LabError(CoveyError):
    """The kernel did not do what a lab needs."""


def missing() -> str:
    """What keeps this user from making networks, and the fix; nothing if all is there."""
    absent = [tool for tool in TOOLS if shutil.which(tool) is None]
    if absent:
        return f"no {' and no '.join(absent)} command: apt-get install iproute2"
    return "" if os.geteuid() == 0 else "only root may make network namespaces: run it with sudo"


def batch(tool: Literal["ip", "tc"], lines: Iterable[str], namespace: str = "") -> None:
    """These commands in order, in a namespace; the first that fails is named."""
    script = "\n".join(lines)
    within = ["-n", namespace] if namespace else []
    done = subprocess.run([tool, *within, "-batch", "-"], input=script, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LabError(f"{tool} refused, in {namespace or 'the machine itself'}: {done.stderr.strip()}\n{script}")


def show(*words: str, namespace: str = "") -> Any:
    """The output of `ip`."""
    within = ["-n", namespace] if namespace else []
    done = subprocess.run(["ip", *within, "-json", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise LabError(f"ip {' '.join(words)}: {done.stderr.strip()}")
    return json.loads(done.stdout or "[]")
