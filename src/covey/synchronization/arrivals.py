"""The gradients that wait at a server: as its rule sees them, and of whom one is missing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from covey.address import Address
from covey.synchronization.board import Board, WaitingGradient


class PushedGradient(Protocol):
    """A message with a gradient that waits."""

    @property
    def sender(self) -> Address: ...
    @property
    def arrival(self) -> WaitingGradient: ...


class Arrivals(Sequence[WaitingGradient]):
    """The gradients that wait, as a rule sees them; looked at one by one, as most rules look at few."""

    def __init__(self, waiting: Sequence[PushedGradient]) -> None:
        self.waiting = waiting

    def __len__(self) -> int:
        return len(self.waiting)

    def __getitem__(self, place: Any) -> Any:
        return self.waiting[place].arrival

    def __iter__(self) -> Iterator[WaitingGradient]:
        return (push.arrival for push in self.waiting)


class Lacking:
    """Whether a worker that trains has no gradient among those that wait.

    One is remembered, so that thousands need not be looked at whenever one more comes. `waiting` only grows, but for
    what `forget` follows.
    """

    def __init__(self, waiting: Sequence[PushedGradient], board: Board) -> None:
        self.waiting, self.board = waiting, board
        self.forget()

    def forget(self) -> None:
        """Some of those that waited are gone."""
        self.rank, self.seen = -1, 0

    def somebody(self) -> bool:
        clocks, waiting = self.board.clocks, self.waiting
        if len(waiting) < len(clocks):
            return True
        if self.rank not in clocks or any(push.sender.rank == self.rank for push in waiting[self.seen :]):
            came = {push.sender.rank for push in waiting}
            self.rank = next((rank for rank in reversed(clocks) if rank not in came), -1)
        self.seen = len(waiting)
        return self.rank in clocks
