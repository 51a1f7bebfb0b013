"""What does a launcher need of the processes of a run, wherever they live?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import zmq

from covey.message import Address

LOST_WITH = "was lost with "
"""How the end of a role begins, in words, whose host was lost."""


class RunProcesses(Protocol):
    """The processes of a run, as a launcher holds them."""

    @property
    def wakeups(self) -> Sequence[int | zmq.Socket[bytes]]:
        """Readable when there may be news."""
        ...

    @property
    def alive(self) -> set[Address]: ...

    @property
    def pids(self) -> Sequence[int]:
        """The processes of all roles, where all live on this machine; else none."""
        ...

    @property
    def paused(self) -> float:
        """The total seconds for which a person has stopped all processes with Ctrl-Z."""
        ...

    def exits(self) -> list[tuple[Address, str]]:
        """Who has ended since the last time, and how; never waits. Whatever else stands still or is gone is raised."""
        ...

    def sign(self, who: Address) -> object:
        """What changes while a role uses the CPU."""
        ...

    def state(self, who: Address) -> str:
        """What a role's process does, by the letter that Linux has for it; none if that is not known."""
        ...

    def begin(self) -> None:
        """All roles are ready, and training begins."""
        ...
