"""What do workers in rounds of all know of each other's incarnations, and what do they say when one goes or comes?"""

from __future__ import annotations

from functools import lru_cache

from covey.membership import Departed, Joined
from covey.message import Address, Message
from covey.program import Node
from covey.vector import Vector


class RoundStanding(Message):
    """How far the sender is, in which incarnations it knows all workers, and which of them have ended.

    `dealt`: where batches are dealt out for each round, those of the next one are.
    """

    wire_name = "together.standing"

    incarnations: tuple[int, ...]
    done: int
    dealt: bool
    ended: tuple[int, ...]

    counted = kept = False


class RoundClosed(Message):
    """The sender, to whom all have spoken in these incarnations, holds nothing of the broken round any more."""

    wire_name = "together.closed"

    incarnations: tuple[int, ...]

    counted = kept = False


class PeerState(Message):
    """What all workers have in common, to one that is behind."""

    wire_name = "together.state"

    state: Vector

    counted = kept = False


class PeerReady(Message):
    """The sender was behind, and is not any more."""

    wire_name = "together.ready"

    counted = kept = False


class Parting(Message):
    """The sender has done this step, after which somebody leaves."""

    wire_name = "together.parting"

    step: int

    counted = kept = False


LASTING = frozenset({Joined, Departed, RoundStanding, RoundClosed})
"""What does not belong to a round."""


class SeatMarks:
    """What a worker knows of all seats: of each a mark, twice its incarnation number, and 1 more where it is empty."""

    def __init__(self, node: Node) -> None:
        self.marks = own_mark(node, 2 * node.incarnation.number)
        self._told: dict[int, int] = {}  # marks of empty seats that the engine itself has told
        self.last_gone: Address | None = None  # of those that the engine has told of

    def hear(self, news: Message) -> None:
        """Take in what the engine says."""
        assert isinstance(news, Joined | Departed)
        rank, mark = news.sender.rank, 2 * news.incarnation + isinstance(news, Departed)
        if isinstance(news, Departed):
            self._told[rank] = max(mark, self._told.get(rank, 0))
            self.last_gone = news.sender
        self.know(tuple(mark if seat == rank else 0 for seat in range(len(self.marks))))

    def know(self, marks: tuple[int, ...]) -> bool:
        """Take in what somebody knows; whether some of it is new."""
        before, self.marks = self.marks, tuple(map(max, self.marks, marks))
        return self.marks != before

    @property
    def empty(self) -> set[int]:
        """The seats in which nobody is."""
        return {rank for rank, mark in enumerate(self.marks) if mark % 2}

    @property
    def sure(self) -> bool:
        """Whether the engine has told of every empty seat; where only others have, its word would break a round off."""
        return all(self._told.get(rank, 0) >= self.marks[rank] for rank in self.empty)


def own_mark(node: Node, mark: int) -> tuple[int, ...]:
    """A mark of every worker: this one's own, and 0 of all others."""
    marks = _unmarked(node.workers)
    return (*marks[: node.rank], mark, *marks[node.rank + 1 :]) if mark else marks


# In virtual time a hundred thousand workers begin with as many marks each: they share them.
@lru_cache(maxsize=4)
def _unmarked(workers: int) -> tuple[int, ...]:
    return (0,) * workers
