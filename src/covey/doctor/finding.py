"""The finding of one check of this machine: what is wrong, and how to fix it."""

from __future__ import annotations

from typing import NamedTuple

from covey.engines.entries.trouble import State


class Finding(NamedTuple):
    """What one check found, and how to fix it."""

    name: str
    state: State
    found: str
    fix: str = ""
    essential: bool = True

    @property
    def fatal(self) -> bool:
        """Whether covey cannot train without it."""
        return self.essential and self.state != "ok"
