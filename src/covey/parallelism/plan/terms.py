"""What a cut is, what it has to meet, and what one stage of it costs."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise

from covey.errors import PlanError
from covey.parallelism.plan.profile import Profile
from covey.parallelism.plan.schedule import Schedule
from covey.parallelism.plan.timetable import MachineRow, Timetable, timetable


@dataclass(frozen=True, kw_only=True, slots=True)
class CutTerms:
    """What a cut has to meet: this many stages on this many machines, in this much memory."""

    stages: int | None  # None: as many as pay
    machines: int | None = None  # more than stages: some stages have several, which take batches in turn
    schedule: Schedule = field(default_factory=Schedule)
    bandwidth: float = math.inf  # bytes a second
    memory: float = math.inf  # bytes of each machine
    trains: bool = False  # every part has something to train, as a run needs it

    @property
    def parts(self) -> int | None:
        """Runs of layers: stages, or chunks where each stage has several."""
        return None if self.stages is None else self.stages * self.schedule.chunks

    @property
    def hosts(self) -> int:
        return self.machines or self.stages or 1

    def check(self, layers: int) -> None:
        """Refuse what no cut can meet."""
        if self.stages is None and self.machines is None:
            raise PlanError("give the number of stages, or of machines for the planner to make stages of")
        if min(self.stages or 1, self.machines or 1) < 1:
            raise PlanError("a cut needs at least 1 stage and 1 machine: use larger numbers")
        if self.parts is not None and self.parts > layers:
            raise PlanError(f"the model can be cut into {layers} parts at most, not {self.parts}: ask for fewer stages")
        stages = self.stages or 1
        if self.hosts < stages:
            raise PlanError(f"{stages} stages need {stages} machines at least, not {self.hosts}")
        self.schedule.check((self.hosts - stages + 1, *[1] * (stages - 1)))


@dataclass(frozen=True, slots=True)
class Cut:
    """After which layers, and how many machines for each part; the slowest stage or link, for one (micro-)batch."""

    after: tuple[int, ...]
    machines: tuple[int, ...]
    slowest: float = math.nan

    def parts(self, layers: int) -> list[tuple[int, int]]:
        """The first and the last layer of each part."""
        borders = [-1, *self.after, layers - 1]
        return [(begin + 1, end) for begin, end in pairwise(borders)]

    def timetable(self, schedule: Schedule, batches: int | None = None) -> Timetable:
        """The rows of all machines."""
        return timetable(schedule, self.machines[: len(self.machines) // schedule.chunks], batches)


def stage_time(profile: Profile, terms: CutTerms, first: int, last: int, here: int) -> float:
    """Seconds for each batch of a stage of `here` machines: computing, or summing gradients if that takes longer.

    T of PipeDream's planner. The machines take batches in turn, and sum around a ring once for each update.
    """
    together = terms.schedule.microbatches if terms.schedule.divides else here
    return max(profile.compute(first, last) / here, ring_time(profile, terms, first, last, here) / together)


def ring_time(profile: Profile, terms: CutTerms, first: int, last: int, here: int) -> float:
    """Seconds to sum the gradients of a stage over its machines."""
    return 2 * (here - 1) / here * profile.weights(first, last) / terms.bandwidth


def link_time(profile: Profile, terms: CutTerms, last: int) -> float:
    """Seconds for each batch of the link after a layer: what goes ahead and what comes back."""
    layer = profile.layers[last]
    return profile.fill * (layer.sends + layer.returns) / terms.bandwidth


def stage_memory(
    profile: Profile, terms: CutTerms, first: int, last: int, left: int, here: int, machines: int
) -> float:
    """Bytes of each machine of a stage, by formula: `left` machines from it on, of `machines` in all."""
    plan = terms.schedule
    return profile.memory(first, last, plan.in_flight(left, here), plan.versions(left, here, machines), plan.recompute)


def row_memory(profile: Profile, cut: Cut, schedule: Schedule, row: MachineRow) -> float:
    """Bytes of the machine that does this row, by its moves: the same as by formula, and also right for chunks."""
    stages = len(cut.machines) // schedule.chunks
    mine = cut.parts(len(profile))[row.stage :: stages]
    kept = [0 if schedule.recompute else profile.kept(*part) for part in mine]
    each = [profile.takes(first) + more for (first, _), more in zip(mine, kept, strict=True)]
    now = most = 0
    for move in row.moves:
        now += {"F": 1, "B": -1, "U": 0}[move.what] * each[move.chunk]
        most = max(most, now)
    again = max(profile.kept(*part) for part in mine) if schedule.recompute else 0
    return sum(profile.standing(*part, row.versions()) for part in mine) + most + again


def memories(profile: Profile, cut: Cut, schedule: Schedule) -> list[float]:
    """Bytes of every machine."""
    return [row_memory(profile, cut, schedule, row) for row in steady(cut, schedule).rows]


def steady(cut: Cut, schedule: Schedule) -> Timetable:
    """A timetable long enough to be in its steady state: several updates where it does not flush."""
    if schedule.flushes:
        return cut.timetable(schedule)
    long = 6 * max(sum(cut.machines), 2)
    return cut.timetable(schedule, 6 * schedule.microbatches if schedule.divides else long)
