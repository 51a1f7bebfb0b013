"""A stage of a pipeline as a replica: its gradient is found together with the other stages, move by move."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import nan, sqrt

from torch import Tensor

from covey.errors import PlanError
from covey.flat import Flat
from covey.lessons import Batch, Lessons
from covey.message import Address
from covey.optimizers import MakeOptimizer
from covey.parallelism.axis import AGE, STAGE
from covey.parallelism.line import FIRST, Line, Place, Told
from covey.parallelism.stages import Tie
from covey.parallelism.stash import Stash
from covey.parallelism.whereabouts import Whereabouts
from covey.parallelism.workshop import Version, Workshop
from covey.program import Node
from covey.replica import Replica, Snapshot
from covey.stream import GradientStream
from covey.vector import Vector

CUT = "this strategy wants gradients of its own choice, or in pieces, which a cut model cannot give: use bsp or ssp"


class Twin(Told):
    """The gradient of weights that lie in several stages."""

    values: Vector


class Length(Told):
    """How long a stage's part of a gradient is, squared."""

    square: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What one worker has of a model: how it lies in memory, where in the whole model, and how it is computed."""

    place: Place
    layout: Flat
    whole: Whereabouts
    workshop: Workshop | None  # of a worker
    ties: Sequence[Tie]
    bulk: int  # bytes that go from one stage to the next for a batch


class StageReplica(Replica):
    """One worker's part of a replica; strategies do with its part of a gradient what they do with a whole one."""

    def __init__(
        self, parts: Parts, optimizer: MakeOptimizer, lessons: Lessons, *, rate: Callable[[float], float] | None,
        budget: int | None, clip_norm: float | None,
    ) -> None:  # fmt: skip
        layout = parts.layout
        super().__init__(
            layout.modules[0], optimizer, lessons, rate=rate, budget=budget, clip_norm=clip_norm, layout=layout
        )
        self.parts, self.place = parts, parts.place
        self._line: Line | None = None
        self._stash: Stash | None = None

    @property
    def bulk(self) -> int:
        return max(super().bulk, self.parts.bulk)

    def enter(self, node: Node) -> None:
        self._line = None
        if not self.place.schedule.flushes:
            self._stash = Stash(node.remember({}), self.layout)

    # -- gradients ------------------------------------------------------------------------------------------------

    async def gradient(self, node: Node, clip: bool = True) -> Vector:
        """This stage's part of the mean gradient of a batch.

        Where the timetable flushes all of it is computed at the weights as they are now; where it does not each batch
        has the version of the weights that its timetable says, forward and backward.
        """
        self.settle()
        line = self._line = self._line or Line(self.place, self._workshop, node)
        self.layout.clear()
        await (self._flushed if self.place.schedule.flushes else self._flowing)(node, line)
        self.layout.collect()
        await self._tie(node, line)
        loss = self._workshop.mean_loss() if self.place.last else nan
        self.batch = Batch(loss, self.lessons.samples(node.rank, node.step))
        await self.announce(node)
        if clip and self.clip_norm is not None:
            return self.clip_(self.grad, await self._length(node, line))
        return self.grad

    async def descend(self, node: Node) -> None:
        await self.gradient(node)
        self.update()

    async def _flushed(self, node: Node, line: Line) -> None:
        for move in line.itinerary.step(node.step):
            await line.do(node, move)

    async def _flowing(self, node: Node, line: Line) -> None:
        """With the version of each move; a backward has its forward's, though the weights have moved on since."""
        stash = self._stash
        assert stash is not None, "a program begins with `enter`"
        stash.keep(node.step, self.flat)
        for move in line.set_out():
            await line.do(node, move, Version(stash.weights(stash.nearest(move.version)), seen=True))
        moves = line.itinerary.step(node.step)
        for move in moves:
            await line.do(node, move, Version(stash.weights(move.version)) if move.what == "F" else None)
        stash.forget(line.oldest)
        await node.note(AGE, node.step - moves[-1].version)

    async def announce(self, node: Node) -> None:
        """The last stage speaks for all: it has seen the loss."""
        self.under_way = self.batch.samples * node.workers
        if self.place.last:
            await super().announce(node)

    async def gradient_of(self, node: Node, rank: int, step: int, part: int = 0, parts: int = 1) -> Vector:
        raise PlanError(CUT)

    def stream(self, node: Node, bucket_bytes: int = 4 << 20) -> GradientStream:
        raise PlanError(CUT)

    def differentiate(self, step: int, flat: bool = True) -> Batch:
        raise PlanError(CUT)

    @property
    def _workshop(self) -> Workshop:
        assert self.parts.workshop is not None, "this role has no data"
        return self.parts.workshop

    # -- what stages settle among themselves ------------------------------------------------------------------------

    async def _tie(self, node: Node, line: Line) -> None:
        """Sum the gradients of weights that lie in several stages, in the order of stages: all get the same bits."""
        for number, tie in enumerate(self.parts.ties):
            if self.place.stage not in tie.stages:
                continue
            step = node.step * len(self.parts.ties) + number
            mine = self._grad_of(tie.of(self.place.stage))
            others = [stage for stage in tie.stages if stage != self.place.stage]
            for stage in others:
                await node.send(Address(STAGE, stage), Twin(step, line.since, Vector([mine])), priority=FIRST)
            theirs = {stage: (await line.take(node, Twin, stage, step)).values.parts[0] for stage in others}
            theirs[self.place.stage] = mine.clone()
            mine.zero_()
            for stage in sorted(theirs):
                mine.add_(theirs[stage].view_as(mine).to(mine.device))

    async def _length(self, node: Node, line: Line) -> float:
        """The norm of the whole model's gradient."""
        here = self.place.stage
        twice = [self._grad_of(tie.of(here)) for tie in self.parts.ties if here in tie.stages[1:]]
        mine = self.grad.norm() ** 2 - Vector(twice).norm() ** 2
        others = [stage for stage in range(self.place.stages) if stage != self.place.stage]
        for stage in others:
            await node.send(Address(STAGE, stage), Length(node.step, line.since, mine), priority=FIRST)
        squares = {stage: (await line.take(node, Length, stage, node.step)).square for stage in others}
        squares[self.place.stage] = mine
        return sqrt(max(0.0, sum(squares[stage] for stage in sorted(squares))))

    def _grad_of(self, name: str) -> Tensor:
        slot = next(slot for slot in self.layout.slots if slot.name == name)
        return slot.view(self.grad)

    # -- what is kept ---------------------------------------------------------------------------------------------

    def snapshot(self, scored: bool = True, counts: bool = False) -> Snapshot:
        """As of any replica, its pieces being those of the whole model."""
        return self.parts.whole.of(super().snapshot(scored, counts), scored)
