"""The versions of the parameters that workers still compute on, for a value bound (Langer et al. 2020)."""

from __future__ import annotations

from covey.vector import Vector, largest


class Versions:
    """Every version in use, and by whom; after a restart there is none, as all workers read anew."""

    def __init__(self) -> None:
        self.kept: dict[int, Vector] = {}
        self.users: dict[int, int] = {}  # the version that each worker computes on

    def gave(self, rank: int, version: int, params: Vector) -> None:
        """A worker was given the parameters as they are."""
        self.users[rank] = version
        if version not in self.kept:
            self.kept[version] = params.clone()

    def back(self, rank: int) -> None:
        """A worker is through with its copy."""
        self.users.pop(rank, None)
        self.kept = {version: kept for version, kept in self.kept.items() if version in self.users.values()}

    def moved(self, params: Vector) -> float:
        """The largest change of a number since the oldest version in use."""
        return largest(params - self.kept[min(self.kept)]) if self.kept else 0.0
