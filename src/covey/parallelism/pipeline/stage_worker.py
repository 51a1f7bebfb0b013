"""One worker's end of the pipeline: it takes what its neighbours give, computes its moves, and hands on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from covey.message import Address, Message
from covey.model.compute_shares import FORWARD
from covey.parallelism.axis import STAGE
from covey.parallelism.pipeline.stage_compute import Microbatch, StageCompute, Values, Version
from covey.parallelism.pipeline.stage_schedule import StageSchedule
from covey.parallelism.plan.schedule import Schedule
from covey.parallelism.plan.timetable import Move
from covey.program import Node
from covey.vector import Vector

FIRST = 1  # gradients overtake: whoever waits for one holds up more


class Told(Message):
    """What stages of a replica tell one another; `since` is the step at which the run began, or began again.

    What was under way when a run was kept is computed and told again, so what a restart finds in a mailbox is old.
    """

    wire_name = "pipeline.told"

    step: int
    since: int


class Ahead(Told):
    """What a part of the model gives the next one for a micro-batch, and the state of chance, if any was drawn."""

    wire_name = "pipeline.ahead"

    values: Vector
    chance: Vector


class Back(Told):
    """The gradients of what a part was given."""

    wire_name = "pipeline.back"

    values: Vector


T = TypeVar("T", bound=Told)


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelinePlace:
    """Where a worker stands in its pipeline."""

    stage: int
    stages: int
    schedule: Schedule
    loads: tuple[float, ...]  # what each of its parts computes of a batch

    @property
    def last(self) -> bool:
        return self.stage == self.stages - 1

    def number(self, chunk: int) -> int:
        """Of its parts, in the whole model."""
        return chunk * self.stages + self.stage


class StageWorker:
    """Forwards and backwards of one worker, in the order of its timetable, from the step on at which a run begins."""

    def __init__(self, place: PipelinePlace, work: StageCompute, node: Node) -> None:
        self.place, self.work, self.since = place, work, node.step
        limit = node.limits[node.rank]
        self.stage_schedule = StageSchedule(place.schedule, place.stage, place.stages, node.step, limit)
        self.flying: dict[Move, int] = {}  # forwards that have not come back, and their versions of the weights
        work.flights.clear()

    def set_out(self) -> list[Move]:
        """The forwards that were under way when the run was kept, once."""
        again, self.stage_schedule.again = self.stage_schedule.again, []
        return again

    @property
    def oldest(self) -> int:
        """The oldest version of the weights that is still needed."""
        return min([*self.flying.values(), self.stage_schedule.oldest])

    async def do(self, node: Node, move: Move, weights: Version | None = None) -> None:
        """One move, a forward with these weights; one of a micro-batch without samples is none."""
        micro = self._micro(node, move)
        if not self.work.microbatches.samples(micro):
            return
        if move.what == "F":
            self.flying[_way(move)] = move.version
            await self._forward(node, move, micro, weights)
        else:
            await self._backward(node, move, micro)
            del self.flying[_way(move)]

    async def take(self, node: Node, kind: type[T], stage: int, step: int) -> T:
        """What a stage of the same replica has to tell."""
        while True:
            came = await node.receive(kind, sender=Address(STAGE, stage), step=step)
            if came.since == self.since:
                return came

    async def _forward(self, node: Node, move: Move, micro: Microbatch, weights: Version | None) -> None:
        where, number = self.place, self.place.number(move.chunk)
        values: Values | None = None
        chance = None
        if number:
            came = await self.take(node, Ahead, (where.stage - 1) % where.stages, self._tag(micro, number - 1))
            values, chance = came.values.parts, next(iter(came.chance.parts), None)
        job = partial(self.work.forward, micro, move.chunk, values, chance, weights)
        made = await node.compute(job, FORWARD * self._load(move, micro), talks=self.work.talks)
        given, drawn = made
        if given:
            tag = self._tag(micro, number)
            told = Ahead(tag, self.since, Vector(given), Vector([drawn] if drawn.numel() else ()))
            await node.send(Address(STAGE, (where.stage + 1) % where.stages), told)

    async def _backward(self, node: Node, move: Move, micro: Microbatch) -> None:
        where, number = self.place, self.place.number(move.chunk)
        errors: Values | None = None
        if number < self.work.count - 1:
            came = await self.take(node, Back, (where.stage + 1) % where.stages, self._tag(micro, number))
            errors = came.values.parts
        again = 1.0 if where.schedule.recompute else 1 - FORWARD
        job = partial(self.work.backward, micro, move.chunk, errors)
        found = await node.compute(job, again * self._load(move, micro), talks=self.work.talks)
        if number:
            told = Back(self._tag(micro, number - 1), self.since, Vector(found))
            await node.send(Address(STAGE, (where.stage - 1) % where.stages), told, priority=FIRST)

    def _load(self, move: Move, micro: Microbatch) -> float:
        return self.place.loads[move.chunk] * self.work.microbatches.share(micro)

    def _micro(self, node: Node, move: Move) -> Microbatch:
        """Which part of which batch this is."""
        plan = self.place.schedule
        parts = plan.microbatches if plan.divides else 1
        step, number = divmod(move.batch, parts)
        return Microbatch(node.step if plan.flushes else step, number, parts)

    def _tag(self, micro: Microbatch, part: int) -> int:
        """One number for each micro-batch behind each part of the model, through the whole run."""
        return (micro.step * micro.parts + micro.number) * self.work.count + part


def _way(move: Move) -> Move:
    """What a forward and its backward have in common."""
    return Move("F", move.batch, move.chunk)
