"""Finds the processes of a run's roles, to kill them."""

from __future__ import annotations

import os
from pathlib import Path


def process_of(role: str, launcher: int | None = None) -> int | None:
    """The process of a role, such as "worker 1", of the run that this process, or another launcher, has started."""
    started = processes_of(launcher or os.getpid())[1:]
    return next((process for process in started if name_of(process) == f"covey: {role}"), None)


def name_of(process: int) -> str:
    """What a process is called; empty if it has ended."""
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes().rstrip(b"\0 ").decode()
    except OSError:
        return ""


def processes_of(launcher: int) -> list[int]:
    """A launcher and all processes that it, or one of those, has started; parents before their children."""
    children: dict[int, list[int]] = {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            state, parent = (place / "stat").read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if state != "Z":
            children.setdefault(int(parent), []).append(int(place.name))
    found = [launcher]
    for process in found:
        found += sorted(children.get(process, ()))
    return found
