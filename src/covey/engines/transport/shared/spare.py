"""The memory that a process may still use, within the limits of machine and container."""

from __future__ import annotations

from pathlib import Path

GROUPS = Path("/sys/fs/cgroup")  # of this container, as it sees itself
KEPT = 0.1  # of what is left, which is not taken
NO_LIMIT = 1 << 60


def spare_memory(groups: Path = GROUPS, machine: Path = Path("/proc/meminfo")) -> int:
    """Bytes that can be taken before the kernel kills a process for them."""
    available = next(line.split()[1] for line in machine.read_text().splitlines() if line.startswith("MemAvailable"))
    return round((1 - KEPT) * max(0, min(int(available) << 10, _allowed(groups))))


def _allowed(groups: Path) -> int:
    """What the limit of the control group leaves, in either version; files that are only cached do not count."""
    for limit, used, folder in (
        ("memory.max", "memory.current", groups),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", groups / "memory"),
    ):
        try:
            most = (folder / limit).read_text().strip()
            if most == "max" or int(most) >= NO_LIMIT:
                return NO_LIMIT
            facts = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            return int(most) - int((folder / used).read_text()) + int(facts.get("inactive_file", 0))
        except (OSError, ValueError):
            continue
    return NO_LIMIT
