"""A timetable in time: when every move begins and ends, given how long each takes. Pure, and exact."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from covey.errors import Stalled
from covey.parallelism.plan.timetable import MachineRow, Move, Timetable


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Seconds, for every part of the model in order (stages, or chunks where there are several on a stage)."""

    forward: Sequence[float]
    backward: Sequence[float]
    ahead: Sequence[float] = ()  # to carry what part k gives to part k + 1
    back: Sequence[float] = ()  # to carry the gradient from part k + 1 to part k
    latency: float = 0.0
    update: Sequence[float] = ()  # of each stage


@dataclass(frozen=True, slots=True)
class TimedMove:
    """One move of one row, and when."""

    row: int
    move: Move
    begin: float
    end: float


@dataclass(frozen=True, slots=True)
class Gantt:
    """All that happens, in the order of the rows."""

    timetable: Timetable
    slots: tuple[TimedMove, ...]

    @property
    def makespan(self) -> float:
        return max((slot.end for slot in self.slots), default=0.0)

    def idle(self, begin: float = 0.0, end: float | None = None) -> float:
        """Seconds of all machines in which nothing is computed."""
        end = self.makespan if end is None else end
        busy = sum(max(0.0, min(slot.end, end) - max(slot.begin, begin)) for slot in self.slots)
        return (end - begin) * len(self.timetable.rows) - busy

    def bubble(self, begin: float = 0.0, end: float | None = None) -> float:
        """The share of the machines' time in which nothing is computed."""
        end = self.makespan if end is None else end
        return self.idle(begin, end) / ((end - begin) * len(self.timetable.rows)) if end > begin else 0.0

    def gaps(self) -> list[tuple[int, float, float]]:
        """The bubble, piece by piece: row, from when, until when."""
        found = []
        for row in range(len(self.timetable.rows)):
            now = 0.0
            for slot in sorted((s for s in self.slots if s.row == row), key=lambda s: s.begin):
                if slot.begin > now:
                    found.append((row, now, slot.begin))
                now = max(now, slot.end)
            if now < self.makespan:
                found.append((row, now, self.makespan))
        return found


def simulate(table: Timetable, times: Times) -> Gantt:
    """Every machine does its row in order, each move as soon as what it needs has arrived.

    Each machine has one link ahead and one back, which carry one message at a time while it computes.
    """
    run = _Run(table, times)
    while any(run.advance(number) for number in range(len(table.rows))):
        pass
    if waiting := [
        f"stage {row.stage}: {row.moves[at]}" for row, at in zip(table.rows, run.at, strict=True) if at < len(row.moves)
    ]:
        raise Stalled(f"this timetable cannot go on; next would be {', '.join(waiting)}")
    return Gantt(table, tuple(run.slots))


class _Run:
    """How far every row is."""

    def __init__(self, table: Timetable, times: Times) -> None:
        self.table, self.times = table, times
        self.at = [0] * len(table.rows)
        self.free = [0.0] * len(table.rows)
        self.links: defaultdict[tuple[int, str], float] = defaultdict(float)
        self.arrived: dict[tuple[str, int, int], float] = {}  # what, batch, part
        self.slots: list[TimedMove] = []
        self.parts = len(table.machines) * table.schedule.chunks

    def advance(self, number: int) -> bool:
        """Do as much of a row as can be done; whether that was anything."""
        row, begun = self.table.rows[number], self.at[number]
        while self.at[number] < len(row.moves):
            move = row.moves[self.at[number]]
            if move.what == "U":
                if not self._update(number, row, move):
                    break
            elif (ready := self._ready(row, move)) is None:
                break
            else:
                self._compute(number, row, move, ready)
        return self.at[number] > begun

    def _ready(self, row: MachineRow, move: Move) -> float | None:
        """When what a move needs is there; None while that is not known."""
        part = self._part(row, move)
        if part == (0 if move.what == "F" else self.parts - 1):
            return 0.0
        return self.arrived.get((move.what, move.batch, part))

    def _compute(self, number: int, row: MachineRow, move: Move, ready: float) -> None:
        part, forward = self._part(row, move), move.what == "F"
        begin = max(self.free[number], ready)
        end = begin + (self.times.forward if forward else self.times.backward)[part]
        self._done(number, move, begin, end)
        to = part + 1 if forward else part - 1
        if 0 <= to < self.parts:
            self.arrived[move.what, move.batch, to] = self._carry(number, end, part, to)

    def _carry(self, number: int, end: float, part: int, to: int) -> float:
        if len(self.table.machines) == 1:
            return end  # another chunk on the same machine
        way = self.times.ahead if to > part else self.times.back
        takes = way[min(part, to)] if way else 0.0
        link = (number, "ahead" if to > part else "back")
        self.links[link] = max(self.links[link], end) + takes
        return self.links[link] + self.times.latency

    def _update(self, number: int, row: MachineRow, move: Move) -> bool:
        """An update of a stage happens on all its machines at once."""
        group = [n for n, other in enumerate(self.table.rows) if other.stage == row.stage and move in other.moves]
        if any(self.table.rows[n].moves[self.at[n] : self.at[n] + 1] != (move,) for n in group):
            return False
        begin = max(self.free[n] for n in group)
        for n in group:
            self._done(n, move, begin, begin + (self.times.update[row.stage] if self.times.update else 0.0))
        return True

    def _done(self, number: int, move: Move, begin: float, end: float) -> None:
        self.slots.append(TimedMove(number, move, begin, end))
        self.free[number] = end
        self.at[number] += 1

    def _part(self, row: MachineRow, move: Move) -> int:
        return move.chunk * len(self.table.machines) + row.stage
