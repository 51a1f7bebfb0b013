"""Rules that a parameter server asks: who may read now, which gradients make the next update, how much each counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, NamedTuple, Protocol

from covey.synchronization.board import Board, WaitingGradient
from covey.synchronization.gates import Gate

UNCHANGED = "unchanged: the mean over the gradients of an update"
DAMPED = {  # what becomes of the learning rate
    "inverse": "each gradient counts 1 over its staleness",
    "dynamic": "each gradient counts 1 over 1 + its staleness",
}


class GatherChoice(NamedTuple):
    """Which of the waiting gradients make an update, by their places; the weights are of their mean."""

    used: list[int]
    weights: list[float]
    dropped: Sequence[int] = ()
    scale: float = 1.0  # on the learning rate of this update


class Gather(Protocol):
    """Which gradients make an update. What it says of itself is all that a server asks about its kind."""

    averages: ClassVar[bool] = True  # an update is a mean; else it is one gradient, which its worker has clipped
    everyone: ClassVar[bool] = False  # every update has a gradient of each worker
    groups: ClassVar[bool] = False  # the mean of a group's gradients may stand for them
    weighs_samples: ClassVar[bool] = False  # a gradient of no samples counts as one, and adds nothing

    @property
    def rate(self) -> str:
        """What becomes of the task's learning rate."""
        return UNCHANGED

    def choose(self, waiting: Sequence[WaitingGradient], board: Board) -> GatherChoice | None:
        """The next update to make of what waits, in the order of arrival; None when more must come."""
        ...

    def among(self, workers: int) -> Gather:
        """The same rule while there are so many workers, where they come and go."""
        return self


@dataclass(frozen=True, slots=True)
class Everyone(Gather):
    """One gradient of every worker that still trains, averaged over all samples."""

    everyone = True
    groups = True
    weighs_samples = True

    def choose(self, waiting: Sequence[WaitingGradient], board: Board) -> GatherChoice | None:
        if len(waiting) < len(board.clocks):
            return None
        first: dict[int, int] = {}  # a proxy's group may be a step ahead: its second gradient is for the next update
        for place, arrival in enumerate(waiting):
            first.setdefault(arrival.rank, place)
        if not waiting or board.clocks.keys() - first.keys():
            return None
        used = [first[rank] for rank in sorted(first)]
        return GatherChoice(used, [waiting[place].samples for place in used])


@dataclass(frozen=True, slots=True)
class Each(Gather):
    """Each gradient as it comes, counting `share`, less the older it is if `damping` says so."""

    averages = False
    groups = True

    share: float
    damping: Literal["none", "inverse", "dynamic"] = "none"

    @property
    def rate(self) -> str:
        return DAMPED.get(self.damping, f"each push counts {self.share:.3g} (1/workers unless given)")

    def choose(self, waiting: Sequence[WaitingGradient], board: Board) -> GatherChoice | None:
        if not waiting:
            return None
        age = board.version - waiting[0].version
        return GatherChoice([0], [1.0], scale=self.share * waiting[0].gradients * damp(self.damping, age))


@dataclass(frozen=True, slots=True)
class Quorum(Gather):
    """The first `size` gradients taken at the newest parameters; late ones are dropped, or folded into the next."""

    weighs_samples = True

    size: int
    late: Literal["drop", "fold"] = "drop"
    count: Literal["workers", "gradients"] = "workers"

    def choose(self, waiting: Sequence[WaitingGradient], board: Board) -> GatherChoice | None:
        late = [place for place, arrival in enumerate(waiting) if arrival.version < board.version]
        fresh = [place for place, arrival in enumerate(waiting) if arrival.version == board.version]
        rest = late if not board.clocks else []  # no more come with which these could be dropped, or folded
        if not (fresh or rest) or not self.enough([waiting[place].rank for place in fresh], board):
            return None
        used = sorted([*fresh, *(late if self.late == "fold" else [])], key=lambda place: waiting[place].rank)
        return GatherChoice(used, [waiting[place].samples for place in used], () if self.late == "fold" else late)

    def enough(self, ranks: list[int], board: Board) -> bool:
        """Whether these workers' gradients will do; as workers leave, fewer can come of distinct ones."""
        if self.count == "gradients":
            return len(ranks) >= self.size or not board.clocks
        return len(set(ranks)) >= min(self.size, len(board.clocks.keys() | set(ranks)))


@dataclass(frozen=True, slots=True)
class Soft(Gather):
    """Any `size` gradients, of whatever versions (k-softsync, Zhang et al. 2016)."""

    size: int
    damping: Literal["none", "inverse", "dynamic"] = "none"
    divisions: int = 1  # n of n-softsync: into how many groups the workers are divided

    def among(self, workers: int) -> Soft:
        return replace(self, size=max(1, workers // self.divisions))

    @property
    def rate(self) -> str:
        return DAMPED.get(self.damping, UNCHANGED)

    def choose(self, waiting: Sequence[WaitingGradient], board: Board) -> GatherChoice | None:
        if not waiting or len(waiting) < min(self.size, len(board.clocks.keys() | {one.rank for one in waiting})):
            return None
        ages = [board.version - arrival.version for arrival in waiting]
        damped = [damp(self.damping, age) for age in ages]
        return GatherChoice(list(range(len(waiting))), damped, scale=sum(damped) / len(damped))


@dataclass(frozen=True, slots=True)
class Ticked(Gather):
    """All that wait, as soon as the slowest worker has done another step: what a proxy writes back."""

    by_samples: bool

    def choose(self, waiting: Sequence[WaitingGradient], board: Board) -> GatherChoice | None:
        if not waiting or (board.clocks and board.slowest <= board.version):
            return None
        used = sorted(range(len(waiting)), key=lambda place: waiting[place].rank)
        return GatherChoice(used, [waiting[place].samples if self.by_samples else 1.0 for place in used])


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
    def lends(self) -> bool:
        """Whether nobody writes the parameters while a worker reads them, so that they may be lent."""
        return self.gate.lends and self.gather.everyone

    @property
    def groups(self) -> bool:
        """Whether servers can do with one clock and one gradient for a group of workers."""
        return self.gate.groups and self.gather.groups
