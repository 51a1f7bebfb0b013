"""Rules that a parameter server asks: who may read now, which gradients make the next update, how much each counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol


class Arrival(NamedTuple):
    """A gradient that waits at the server: whose it is, the version of the parameters it was taken at, its samples."""

    rank: int
    version: int
    samples: int
    gradients: int = 1  # of which it is the mean: a proxy's stands for its group's


@dataclass(slots=True)
class Board:
    """What a server knows of its workers; it survives a restart."""

    clocks: dict[int, int]  # gradients pushed by each worker that still trains
    version: int = 0  # updates made
    pushed: dict[int, int] = field(default_factory=dict)  # the version of each worker's last gradient
    times: dict[int, list[float]] = field(default_factory=dict)  # when each worker's last two gradients came
    credits: dict[int, int] = field(default_factory=dict)  # reads that a worker may still do beyond the bound

    @property
    def slowest(self) -> int:
        return min(self.clocks.values())

    @property
    def fastest(self) -> int:
        return max(self.clocks.values())

    def came(self, arrival: Arrival, now: float) -> None:
        """A gradient has come."""
        self.clocks[arrival.rank] += 1
        self.pushed[arrival.rank] = arrival.version
        self.times[arrival.rank] = [*self.times.get(arrival.rank, []), now][-2:]

    def stands(self, rank: int, clock: int) -> None:
        """A worker says how far it is: it may have skipped steps, or a proxy's slowest worker may have left."""
        self.clocks[rank] = max(self.clocks[rank], clock)

    def leave(self, rank: int) -> None:
        """A worker trains no more, so nobody waits for it."""
        for table in (self.clocks, self.times, self.credits):
            table.pop(rank, None)


class Gate(Protocol):
    """Who may read."""

    def admits(self, rank: int, board: Board) -> bool:
        """Whether this worker's read may be answered now."""
        ...


@dataclass(frozen=True, slots=True)
class Bounded:
    """A worker reads while it is at most `bound` steps ahead of the slowest (Ho et al. 2013); 0 is a barrier."""

    bound: int

    def admits(self, rank: int, board: Board) -> bool:
        return board.clocks[rank] - board.slowest <= self.bound


@dataclass(frozen=True, slots=True)
class Open:
    """Every read is answered at once."""

    def admits(self, rank: int, board: Board) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class Newer:
    """A worker reads as soon as there are parameters newer than those of its last gradient."""

    def admits(self, rank: int, board: Board) -> bool:
        return rank not in board.pushed or board.version > board.pushed[rank]


@dataclass(frozen=True, slots=True)
class Predicted:
    """The bound moves between `low` and `low + extra`, so that a fast worker stops where it waits least (Zhao 2019)."""

    low: int
    extra: int

    def admits(self, rank: int, board: Board) -> bool:
        lead = board.clocks[rank] - board.slowest
        if lead <= self.low:
            return True
        if board.credits.get(rank, 0) == 0 and board.clocks[rank] == board.fastest:
            # our clamp: without it repeated grants would have no bound
            board.credits[rank] = min(self.grant(rank, board), self.low + self.extra - lead)
        if board.credits.get(rank, 0) <= 0:
            return False
        board.credits[rank] -= 1
        return True

    def grant(self, rank: int, board: Board) -> int:
        """How many more steps end nearest to a step of the slowest worker, if both go on as they last did."""
        slow = min(board.clocks, key=lambda other: (board.clocks[other], other))
        mine, theirs = board.times.get(rank, []), board.times.get(slow, [])
        if len(mine) < 2 or len(theirs) < 2:
            return 0
        ends = [theirs[1] + k * (theirs[1] - theirs[0]) for k in range(1, self.extra + 2)]
        waits = [min(abs(mine[1] + k * (mine[1] - mine[0]) - end) for end in ends) for k in range(self.extra + 1)]
        return waits.index(min(waits))


class Choice(NamedTuple):
    """Which of the waiting gradients make an update, by their places; the weights are of their mean."""

    used: list[int]
    weights: list[float]
    dropped: Sequence[int] = ()
    scale: float = 1.0  # on the learning rate of this update


class Gather(Protocol):
    """Which gradients make an update."""

    def choose(self, waiting: Sequence[Arrival], board: Board) -> Choice | None:
        """The next update to make of what waits, in the order of arrival; None when more must come."""
        ...


@dataclass(frozen=True, slots=True)
class Everyone:
    """One gradient of every worker that still trains, averaged over all samples."""

    def choose(self, waiting: Sequence[Arrival], board: Board) -> Choice | None:
        first: dict[int, int] = {}  # a proxy's group may be a step ahead: its second gradient is for the next update
        for place, arrival in enumerate(waiting):
            first.setdefault(arrival.rank, place)
        if not waiting or board.clocks.keys() - first.keys():
            return None
        used = [first[rank] for rank in sorted(first)]
        return Choice(used, [waiting[place].samples for place in used])


@dataclass(frozen=True, slots=True)
class Each:
    """Each gradient as it comes, counting `share`, less the older it is if `damping` says so."""

    share: float
    damping: Literal["none", "inverse", "dynamic"] = "none"

    def choose(self, waiting: Sequence[Arrival], board: Board) -> Choice | None:
        if not waiting:
            return None
        age = board.version - waiting[0].version
        return Choice([0], [1.0], scale=self.share * waiting[0].gradients * damp(self.damping, age))


@dataclass(frozen=True, slots=True)
class Quorum:
    """The first `size` gradients taken at the newest parameters; late ones are dropped, or folded into the next."""

    size: int
    late: Literal["drop", "fold"] = "drop"
    count: Literal["workers", "gradients"] = "workers"

    def choose(self, waiting: Sequence[Arrival], board: Board) -> Choice | None:
        late = [place for place, arrival in enumerate(waiting) if arrival.version < board.version]
        fresh = [place for place, arrival in enumerate(waiting) if arrival.version == board.version]
        ranks = {waiting[place].rank for place in fresh}
        needed = min(self.size, len(board.clocks.keys() | ranks))  # one that has left may have pushed before
        if not fresh or (len(ranks) if self.count == "workers" else len(fresh)) < needed:
            return None
        used = sorted([*fresh, *(late if self.late == "fold" else [])], key=lambda place: waiting[place].rank)
        return Choice(used, [waiting[place].samples for place in used], () if self.late == "fold" else late)


@dataclass(frozen=True, slots=True)
class Soft:
    """Any `size` gradients, of whatever versions (k-softsync, Zhang et al. 2016)."""

    size: int
    damping: Literal["none", "inverse", "dynamic"] = "none"

    def choose(self, waiting: Sequence[Arrival], board: Board) -> Choice | None:
        if not waiting or len(waiting) < min(self.size, len(board.clocks.keys() | {one.rank for one in waiting})):
            return None
        ages = [board.version - arrival.version for arrival in waiting]
        damped = [damp(self.damping, age) for age in ages]
        return Choice(list(range(len(waiting))), damped, scale=sum(damped) / len(damped))


@dataclass(frozen=True, slots=True)
class Ticked:
    """All that wait, as soon as the slowest worker has done another step: what a proxy writes back."""

    by_samples: bool

    def choose(self, waiting: Sequence[Arrival], board: Board) -> Choice | None:
        if not waiting or (board.clocks and board.slowest <= board.version):
            return None
        used = sorted(range(len(waiting)), key=lambda place: waiting[place].rank)
        return Choice(used, [waiting[place].samples if self.by_samples else 1.0 for place in used])


def damp(damping: str, age: int) -> float:
    """What a gradient counts that is `age` updates old."""
    if damping == "inverse":  # Zhang, Gupta et al. 2016: the rate over the staleness
        return 1 / max(1, age)
    if damping == "dynamic":  # Jiang et al. 2017: over the number of updates since the read, this one included
        return 1 / (1 + age)
    return 1.0


@dataclass(frozen=True, slots=True)
class Rule:
    """How a server keeps its workers together."""

    gate: Gate
    gather: Gather

    @property
    def one_each(self) -> bool:
        """Whether each gradient makes an update of its own."""
        return isinstance(self.gather, Each)

    @property
    def bounds(self) -> bool:
        """Whether workers are held by how many steps they lead."""
        return isinstance(self.gate, Bounded)

    @property
    def lends(self) -> bool:
        """Whether nobody writes the parameters while a worker reads them, so that they may be lent."""
        return isinstance(self.gate, Bounded) and self.gate.bound == 0 and isinstance(self.gather, Everyone)
