"""Facts about this machine and its software versions, for the result of a run."""

from __future__ import annotations

import os
import platform
from functools import cache
from pathlib import Path

from covey.errors import PlanError

BOOT = Path("/proc/sys/kernel/random/boot_id")
PACKAGES = ("covey", "torch", "pyzmq", "msgspec", "numpy")
PROCESSES = ("fork", "memfd_create", "eventfd", "sched_getaffinity")  # what real roles ask of the operating system


def describe() -> dict[str, str | int]:
    """The machine, in a few words; nothing that changes from run to run."""
    return {
        "system": platform.system(),
        "processor": platform.machine(),
        "cores": cores(),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0,
    }


def threads_each(workers: int) -> int:
    """How many threads a role gets by default: the cores, shared among the workers."""
    return max(1, cores() // workers)


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check_processes() -> None:
    """Refuse real processes where the operating system has not what they need."""
    if missing := [name for name in PROCESSES if not hasattr(os, name)]:
        raise PlanError(
            f"real processes need Linux: {platform.system()} has no {', '.join(missing)}. What works here: "
            "covey simulate, compare --simulate, scale, strategies, and advise for a cluster given by --bandwidth …"
        )


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
    from importlib.metadata import PackageNotFoundError, version  # `covey --help` does without it

    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
