"""Names of labs and their parts, by which the remains of a dead launcher are recognized."""

from __future__ import annotations

import os
import re
from itertools import count
from pathlib import Path
from typing import NamedTuple

NETNS = Path("/run/netns")  # where `ip netns` keeps the names of namespaces
_NAME = re.compile(r"covey-(\d+)-(\d+)-(\d+)")
_serial = count()


class Name(NamedTuple):
    """The launcher's process, when it began (for numbers of processes come back), and which of its labs this is."""

    pid: int
    began: int
    serial: int

    def __str__(self) -> str:
        return f"covey-{self.pid}-{self.began}-{self.serial}"

    def host(self, host: str) -> str:
        """The namespace of a host."""
        return f"{self}-{host}"

    @property
    def switch(self) -> str:
        """The namespace in which all links end, on two bridges."""
        return f"{self}-switch"

    @property
    def link(self) -> str:
        """The launcher's own interface, of at most 15 characters."""
        return f"cv{self.pid}x{self.serial % 10000}"

    @property
    def alive(self) -> bool:
        """Whether the launcher is still there."""
        return began(self.pid) == self.began

    def namespaces(self) -> list[str]:
        return sorted(path.name for path in NETNS.glob(f"{self}-*"))


def new() -> Name:
    """A name for the next lab of this process."""
    me = os.getpid()
    now = began(me)
    assert now is not None, "this process is there"
    return Name(me, now, next(_serial))


def named(text: str) -> Name | None:
    """The lab that something belongs to."""
    found = _NAME.match(text)
    return Name(*map(int, found.groups())) if found else None


def began(pid: int) -> int | None:
    """When a process began, in ticks since the machine did (proc(5), field 22); None if there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])
