"""The finding of one check of this machine: what is wrong, and how to fix it."""

from __future__ import annotations

from typing import Literal, NamedTuple

State = Literal["ok", "missing", "failed"]


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


class Trouble(Exception):
    """A check that did not go well: what was found, and the fix."""

    def __init__(self, found: str, fix: str, state: State = "failed") -> None:
        super().__init__(found)
        self.found, self.fix, self.state = found, fix, state
