"""Who is meant? The address of a role in a run; without torch, which the processes around roles need not import."""

from __future__ import annotations

from typing import NamedTuple


class Address(NamedTuple):
    """The address of a role in a run.

    Args:
        role: What it is, such as "worker" or "server".
        rank: Its number among those of its kind, from 0.

    >>> str(covey.Address("worker", 2))
    'worker 2'
    """

    role: str
    rank: int

    def __str__(self) -> str:
        return f"{self.role} {self.rank}"
