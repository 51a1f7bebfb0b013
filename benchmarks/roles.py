"""Finds the processes of a run's roles, to kill them."""

from __future__ import annotations

import os
from pathlib import Path


def process_of(role: str, launcher: int | None = None) -> int | None:
    """The process of a role, such as "worker 1", of the run that this process, or another launcher, has started."""
    mine = {str(launcher or os.getpid())}
    places = sorted(Path("/proc").glob("[0-9]*"), key=lambda place: int(place.name))
    for place in places * 3:  # a child may have a smaller number than its parent
        try:
            state, parent = (place / "stat").read_text().rpartition(")")[2].split()[:2]
            if parent in mine and state != "Z":
                mine.add(place.name)
                if (place / "cmdline").read_bytes().rstrip(b"\0 ").decode() == f"covey: {role}":
                    return int(place.name)
        except OSError:
            continue
    return None
