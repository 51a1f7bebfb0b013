"""Facts about this machine and its software versions, for the result of a run."""

from __future__ import annotations

import os
import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

BOOT = Path("/proc/sys/kernel/random/boot_id")
PACKAGES = ("covey", "torch", "pyzmq", "msgspec", "numpy")


def describe() -> dict[str, str | int]:
    """The machine, in a few words; nothing that changes from run to run."""
    return {
        "system": platform.system(),
        "processor": platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    }


def this_boot() -> str:
    """What distinguishes this machine, since it was started, from all others; empty where Linux does not tell."""
    try:
        return BOOT.read_text().strip()
    except OSError:
        return ""


def versions() -> dict[str, str]:
    return {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}}


@cache
def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
