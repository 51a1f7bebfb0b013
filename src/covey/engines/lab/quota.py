"""The CPU quota of a lab host: a process group in cgroups of version 1 or 2."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from covey.engines.lab.iproute import LabError

PERIOD = 20_000  # microseconds: the shorter, the smoother; the kernel hands out slices of 5 ms
LEAST = 1_000  # the smallest quota that the kernel takes
WEIGHTS = {"cpu.shares": 262_144, "cpu.weight": 10_000}  # the most there is: quotas limit a lab, not other load
PATIENCE = 5.0  # seconds until the processes of a group are gone


class Groups(NamedTuple):
    """Where groups are made, and of which version."""

    root: Path
    version: int


def groups(mounts: Path = Path("/proc/mounts")) -> Groups:
    """This machine's groups that have a say over cores."""
    unified = None
    for line in mounts.read_text().splitlines():
        _, place, kind, options, *_ = line.split()
        if kind == "cgroup" and "cpu" in options.split(","):
            return Groups(Path(place), 1)
        if kind == "cgroup2":
            unified = Path(place)
    if unified and "cpu" in (unified / "cgroup.controllers").read_text().split():
        return Groups(unified, 2)
    raise LabError("no cgroup with the cpu controller can be used here: lab(cpu=all) sets no quota")


def make(lab: str, hosts: list[str], found: Groups) -> dict[str, Path]:
    """A group for each host; its quota is set later."""
    top = found.root / lab
    try:
        for place in (found.root, top):
            place.mkdir(exist_ok=True)
            if found.version == 2:
                (place / "cgroup.subtree_control").write_text("+cpu")
        for file, weight in WEIGHTS.items():
            if (top / file).exists():
                (top / file).write_text(str(weight))
        for host in hosts:
            (top / host).mkdir()
    except OSError as error:
        raise LabError(f"cgroups cannot be made in {found.root} ({error}): lab(cpu=all) does without") from error
    return {host: top / host for host in hosts}


def limit(group: Path, share: float) -> None:
    """From now on the processes of this group share this number of cores."""
    period = max(PERIOD, round(LEAST / share))
    quota = max(LEAST, round(period * share))
    if (group / "cpu.max").exists():
        (group / "cpu.max").write_text(f"{quota} {period}")
    else:
        (group / "cpu.cfs_period_us").write_text(str(period))
        (group / "cpu.cfs_quota_us").write_text(str(quota))


def remove(top: Path) -> None:
    """Take the groups of a lab away; the last of their processes may still be ending."""
    until = time.monotonic() + PATIENCE
    while True:
        for group in [*(path for path in top.glob("*") if path.is_dir()), top]:
            with suppress(OSError):
                group.rmdir()
        if not top.exists():
            return
        if time.monotonic() > until:
            raise LabError(f"{top} cannot be removed: processes are still in it")
        time.sleep(0.02)


def left(lab: str = "covey-*") -> list[Path]:
    """The groups of labs, or of one."""
    try:
        root = groups().root
    except LabError:
        return []  # none can be made here
    return [path for path in root.glob(lab) if path.is_dir()]
