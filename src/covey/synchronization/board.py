"""What a parameter server knows of its workers when it asks its rule."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class WaitingGradient(NamedTuple):
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
    taken: list[int] = field(default_factory=lambda: [0, 0])  # a version, and how many reads of it were answered
    moved: float = 0.0  # how far the parameters are from the oldest copy that somebody computes on

    least: int | None = None  # the smallest clock, while it is known: a barrier of thousands asks for it all the time
    lasts: int = 0  # how many workers have it; of a checkpoint that does not say so the first one to move counts

    @property
    def slowest(self) -> int:
        if self.least is None:
            clocks = [*self.clocks.values()]
            self.least = min(clocks)
            self.lasts = clocks.count(self.least)
        return self.least

    @property
    def fastest(self) -> int:
        return max(self.clocks.values())

    def urgency(self, rank: int, workers: int) -> int:
        """The higher the further a worker is behind: by its steps, and of equals by whose last gradient came later."""
        mine = self._last(rank)
        return sum(self._last(other) < mine for other in self.clocks) - self.clocks[rank] * workers

    def _last(self, rank: int) -> float:
        return self.times[rank][-1] if rank in self.times else 0.0

    def came(self, arrival: WaitingGradient, now: float) -> None:
        """A gradient has come."""
        self._set(arrival.rank, self.clocks[arrival.rank] + 1)
        self.pushed[arrival.rank] = arrival.version
        self.times[arrival.rank] = [*self.times.get(arrival.rank, []), now][-2:]

    def stands(self, rank: int, clock: int) -> None:
        """A worker says how far it is: it may have skipped steps, or a proxy's slowest worker may have left."""
        self._set(rank, max(self.clocks[rank], clock))

    def leave(self, rank: int) -> None:
        """A worker trains no more, so nobody waits for it."""
        self._moves(rank)
        for table in (self.clocks, self.times, self.credits):
            table.pop(rank, None)

    def enter(self, rank: int, clock: int) -> None:
        """A worker begins to train, as one that is so far."""
        if self.least is not None and clock <= self.least:
            self.least = None
        self.clocks[rank] = clock

    def _set(self, rank: int, clock: int) -> None:
        if clock != self.clocks[rank]:
            self._moves(rank)
        self.clocks[rank] = clock

    def _moves(self, rank: int) -> None:
        """A worker's clock goes on, or is no more: the smallest one changes when the last that has it does so."""
        if self.clocks.get(rank) == self.least:
            self.lasts -= 1
            if self.lasts <= 0:
                self.least = None
