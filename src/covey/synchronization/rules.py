"""Rules that a parameter server asks: may this pull be answered now, and how much does this gradient count?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class Rule(Protocol):
    """`clock` is the number of gradients a worker has pushed, `slowest` the least of all workers still training."""

    @property
    def together(self) -> bool:
        """Whether the gradients of one step make one update, instead of one each."""
        ...

    def admits(self, clock: int, slowest: int) -> bool:
        """Whether a worker at `clock` may read the parameters now."""
        ...

    def weight(self, workers: int) -> float:
        """What one pushed gradient counts, as a factor on the learning rate."""
        ...


@dataclass(frozen=True, slots=True)
class Barrier:
    """Bulk synchronous: nobody reads before everybody has pushed; a step's gradients make one update."""

    together: bool = True

    def admits(self, clock: int, slowest: int) -> bool:
        return clock <= slowest

    def weight(self, workers: int) -> float:
        return 1.0


@dataclass(frozen=True, slots=True)
class Bounded:
    """Stale synchronous: a worker reads while it is at most `bound` steps ahead of the slowest (Ho et al. 2013)."""

    bound: int
    share: float | None = None
    together: bool = False

    def admits(self, clock: int, slowest: int) -> bool:
        return clock - slowest <= self.bound

    def weight(self, workers: int) -> float:
        return 1 / workers if self.share is None else self.share


@dataclass(frozen=True, slots=True)
class Unbounded:
    """Asynchronous: every read is answered at once."""

    share: float | None = None
    together: bool = False

    def admits(self, clock: int, slowest: int) -> bool:
        return True

    def weight(self, workers: int) -> float:
        return 1 / workers if self.share is None else self.share
