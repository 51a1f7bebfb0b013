"""What one worker of a pipeline does, step by step: the moves up to each update, and those in flight at a restart."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from covey.parallelism.plan.schedule import Schedule
from covey.parallelism.plan.timetable import Move, pipedream, timetable, two_buffers

ENDLESS = 1 << 40  # batches of a run that has no end of its own


class StageSchedule:
    """The moves of one worker. Where the timetable flushes every step has the same; else they go on from step to step.

    Forwards that were under way when a run was kept have to be done again, with the weights of then: `again`.
    """

    def __init__(self, schedule: Schedule, stage: int, stages: int, done: int, limit: int | None) -> None:
        self.schedule, self._next = schedule, done
        self.again: list[Move] = []
        if schedule.flushes:
            row = timetable(schedule, (1,) * stages).rows[stage]
            self._step = [move for move in row.moves if move.what != "U"]
            return
        self._rest = _steps(_endless(schedule, stages - 1 - stage, stages, limit))
        flying: dict[tuple[int, int], Move] = {}
        for moves in islice(self._rest, done):
            for move in moves:
                if move.what == "F":
                    flying[move.batch, move.chunk] = move
                else:
                    flying.pop((move.batch, move.chunk))
        self.again = list(flying.values())
        self._ahead = next(self._rest, [])

    def step(self, number: int) -> list[Move]:
        """The moves of a step, which follows the one asked for before."""
        if self.schedule.flushes:
            return self._step
        assert number == self._next, f"step {number} is asked for, and {self._next} comes next"
        self._next += 1
        moves, self._ahead = self._ahead, next(self._rest, [])
        return moves

    @property
    def oldest(self) -> int:
        """The oldest version of the weights that a forward of the coming step will use."""
        return min((move.version for move in self._ahead if move.what == "F"), default=ENDLESS)


def _endless(schedule: Schedule, warm: int, stages: int, limit: int | None) -> Iterable[Move]:
    """The row of a stage with `warm` stages behind it, to the end of the run."""
    steps = ENDLESS if limit is None else limit
    if not schedule.divides:
        return pipedream(range(steps), warm, oldest=stages - 1 if schedule.vertical else None)
    many = steps * schedule.microbatches
    return two_buffers(range(many), warm, schedule.microbatches, many)


def _steps(moves: Iterable[Move]) -> Iterator[list[Move]]:
    """The moves before each update."""
    found: list[Move] = []
    for move in moves:
        if move.what == "U":
            yield found
            found = []
        else:
            found.append(move)
