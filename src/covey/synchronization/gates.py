"""Gates: which reads a parameter server may answer now."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

from covey.synchronization.board import Board


class Gate(Protocol):
    """Who may read. What a gate says of itself is all that a server asks about its kind."""

    # what it compares: leads in steps, versions, reads of a version, or how far the parameters have moved
    holds_by: ClassVar[Literal["nothing", "steps", "versions", "reads", "change"]] = "nothing"
    groups: ClassVar[bool] = False  # the slowest worker of a group may stand for all of it
    awaits_slowest: ClassVar[bool] = False  # who is refused stays refused until the slowest worker is further

    @property
    def lends(self) -> bool:
        """Whether no gradient is applied while a worker may still read, if updates wait for everyone."""
        return False

    def admits(self, rank: int, board: Board) -> bool:
        """Whether this worker's read may be answered now."""
        ...


@dataclass(frozen=True, slots=True)
class Bounded(Gate):
    """A worker reads while it is at most `bound` steps ahead of the slowest (Ho et al. 2013); 0 is a barrier."""

    holds_by = "steps"
    groups = True
    awaits_slowest = True

    bound: int

    @property
    def lends(self) -> bool:
        return self.bound == 0

    def admits(self, rank: int, board: Board) -> bool:
        return board.clocks[rank] - board.slowest <= self.bound


@dataclass(frozen=True, slots=True)
class Open(Gate):
    """Every read is answered at once."""

    groups = True

    def admits(self, rank: int, board: Board) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class Newer(Gate):
    """A worker reads as soon as there are parameters newer than those of its last gradient."""

    holds_by = "versions"

    def admits(self, rank: int, board: Board) -> bool:
        return rank not in board.pushed or board.version > board.pushed[rank]


WAITS = -1  # in place of credits: until the slowest has come near enough, nothing more is granted


@dataclass(frozen=True, slots=True)
class Predicted(Gate):
    """The bound moves between `low` and `low + extra`, so that a fast worker stops where it waits least (Zhao 2019)."""

    holds_by = "steps"

    low: int
    extra: int

    def admits(self, rank: int, board: Board) -> bool:
        lead, left = board.clocks[rank] - board.slowest, board.credits.get(rank, 0)
        if left <= 0 and lead <= self.low:
            board.credits[rank] = 0
            return True
        if left == 0 and board.clocks[rank] == board.fastest:
            # our clamp: without it repeated grants would have no bound
            left = min(self.grant(rank, board), self.low + self.extra - lead)
        board.credits[rank] = left - 1 if left > 0 else WAITS  # what was granted is used up, though others come near
        return left > 0

    def grant(self, rank: int, board: Board) -> int:
        """How many more steps end nearest to a step of the slowest worker, if both go on as they last did."""
        slow = min(board.clocks, key=lambda other: (board.clocks[other], other))
        mine, theirs = board.times.get(rank, []), board.times.get(slow, [])
        if len(mine) < 2 or len(theirs) < 2:
            return 0
        ends = [theirs[1] + k * (theirs[1] - theirs[0]) for k in range(1, self.extra + 2)]
        waits = [min(abs(mine[1] + k * (mine[1] - mine[0]) - end) for end in ends) for k in range(self.extra + 1)]
        return waits.index(min(waits))


@dataclass(frozen=True, slots=True)
class Tokens(Gate):
    """A fixed number of reads of each version: a fast worker may take what a slow one leaves (Abadi 2016)."""

    holds_by = "reads"

    count: int

    def admits(self, rank: int, board: Board) -> bool:
        taken = board.taken[1] if board.taken[0] == board.version else 0
        if taken >= self.count:
            return False
        board.taken = [board.version, taken + 1]
        return True


@dataclass(frozen=True, slots=True)
class Near(Gate):
    """A worker reads while the parameters moved by less than `bound` since the oldest copy in use (Langer 2020)."""

    holds_by = "change"

    bound: float

    def admits(self, rank: int, board: Board) -> bool:
        return board.moved < self.bound
