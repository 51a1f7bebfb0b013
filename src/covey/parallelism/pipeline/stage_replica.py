"""A stage of a pipeline as a replica: its gradient is found together with the other stages, move by move."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import nan, sqrt

import torch
from torch import nn

from covey.message import Address
from covey.model.batches import Batch, BatchSource
from covey.model.flat import Flat
from covey.model.optimizers import MakeOptimizer
from covey.model.slots import TensorSlot
from covey.parallelism.axis import AGE, STAGE
from covey.parallelism.cut_replica import CutReplica
from covey.parallelism.parameter_map import ParameterMap
from covey.parallelism.pipeline.stage_compute import StageCompute, Version
from covey.parallelism.pipeline.stage_worker import FIRST, PipelinePlace, StageWorker, Told
from covey.parallelism.pipeline.stash import STASH, Stash
from covey.parallelism.stages import Tie
from covey.program import Node
from covey.settings import SchedulePace
from covey.vector import Vector


class Lent(Told):
    """The owner's weights, for another stage that uses them in this step."""

    wire_name = "pipeline.lent"

    values: Vector


class Twin(Told):
    """What another stage adds to the gradient of weights that it has borrowed."""

    wire_name = "pipeline.twin"

    values: Vector


class Length(Told):
    """How long a stage's part of a gradient is, squared."""

    wire_name = "pipeline.length"

    square: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StageParts:
    """What one worker has of a model: how it lies in memory, where in the whole model, and how it is computed."""

    place: PipelinePlace
    layout: Flat
    whole: ParameterMap
    stage_compute: StageCompute | None  # of a worker
    ties: Mapping[str, Tie]  # of the whole model, by the names of its parameters
    borrowed: Mapping[str, nn.Parameter]  # those that another stage owns
    bulk: int  # bytes that go from one stage to the next for a batch


class StageReplica(CutReplica):
    """One worker's part of a replica; strategies do with its part of a gradient what they do with a whole one."""

    parts: StageParts
    instead = "a cut model cannot give: use bsp or ssp"

    def __init__(
        self, parts: StageParts, optimizer: MakeOptimizer, batch_source: BatchSource, *,
        rate: Callable[[float], float] | None, budget: int | None, clip_norm: float | None, pace: SchedulePace | None,
    ) -> None:  # fmt: skip
        layout = parts.layout
        super().__init__(
            layout.modules[0], optimizer, batch_source,
            rate=rate, budget=budget, clip_norm=clip_norm, pace=pace, layout=layout,
        )  # fmt: skip
        self.parts, self.place = parts, parts.place
        self._line: StageWorker | None = None
        self._stash: Stash | None = None

    def changing(self) -> list[object]:
        work = self.parts.stage_compute
        return [*super().changing(), *([work, work.microbatches] if work else [])]

    def enter(self, node: Node) -> None:
        self._line = None
        if not self.place.schedule.flushes:
            self._stash = Stash(node.remember(STASH, {}), self.layout)

    # -- gradients ------------------------------------------------------------------------------------------------

    async def gradient(self, node: Node, clip: bool = True) -> Vector:
        """This stage's part of the mean gradient of a batch.

        Where the timetable flushes all of it is computed at the weights as they are now; where it does not each batch
        has the version of the weights that its timetable says, forward and backward.
        """
        self.compute.working.refresh()
        line = self._line = self._line or StageWorker(self.place, self._compute, node)
        self.layout.clear()
        await self._lend(node, line)
        await (self._flushed if self.place.schedule.flushes else self._flowing)(node, line)
        self.layout.collect()
        await self._give_back(node, line)
        loss = self._compute.mean_loss() if self.place.last else nan
        await self.report(node, Batch(loss, self.batch_source.samples(node.rank, node.step)))
        if clip and self.updates.clip_norm is not None:
            return self.updates.clip_(self.grad, await self._length(node, line))
        return self.grad

    async def _flushed(self, node: Node, line: StageWorker) -> None:
        for move in line.stage_schedule.step(node.step):
            await line.do(node, move)

    async def _flowing(self, node: Node, line: StageWorker) -> None:
        """With the version of each move; a backward has its forward's, though the weights have moved on since."""
        stash = self._stash
        assert stash is not None, "a program begins with `enter`"
        stash.keep(node.step, self.flat)
        for move in line.set_out():
            await line.do(node, move, Version(stash.weights(stash.nearest(move.version)), seen=True))
        moves = line.stage_schedule.step(node.step)
        for move in moves:
            await line.do(node, move, Version(stash.weights(move.version)) if move.what == "F" else None)
        stash.forget(line.oldest)
        await node.note(AGE, node.step - moves[-1].version)

    async def announce(self, node: Node) -> None:
        """The last stage speaks for all: it has seen the loss."""
        self.progress.begin(self.batch.samples * node.workers)
        if self.place.last:
            await super().announce(node)

    @property
    def _compute(self) -> StageCompute:
        assert self.parts.stage_compute is not None, "this role has no data"
        return self.parts.stage_compute

    # -- what stages settle among themselves ------------------------------------------------------------------------

    async def _lend(self, node: Node, line: StageWorker) -> None:
        """Bring weights that several stages use from their owner to the others: all compute on the same bits."""
        for step, tie, name in self._ties(node):
            owner, *others = tie.stages
            if self.place.stage == owner:
                for stage in others:
                    body = Lent(step, line.since, Vector([self._slot(name).view(self.flat)]))
                    await node.send(Address(STAGE, stage), body, priority=FIRST)
            else:
                weight, lent = self.parts.borrowed[name], await line.take(node, Lent, owner, step)
                weight.data.copy_(lent.values.parts[0].view_as(weight))
                weight.grad = None

    async def _give_back(self, node: Node, line: StageWorker) -> None:
        """Bring the gradients of borrowed weights to their owner, which adds them in the order of stages."""
        for step, tie, name in self._ties(node):
            owner, *others = tie.stages
            if self.place.stage == owner:
                grad = self._slot(name).view(self.grad)
                for stage in others:
                    grad.add_((await line.take(node, Twin, stage, step)).values.parts[0].view_as(grad).to(grad.device))
            else:
                weight = self.parts.borrowed[name]
                grad = torch.zeros_like(weight) if weight.grad is None else weight.grad
                await node.send(Address(STAGE, owner), Twin(step, line.since, Vector([grad])), priority=FIRST)

    def _ties(self, node: Node) -> Iterator[tuple[int, Tie, str]]:
        """The ties of this stage, each with a number of its own in the whole run, and its name."""
        for number, (name, tie) in enumerate(self.parts.ties.items()):
            if self.place.stage in tie.stages:
                yield node.step * len(self.parts.ties) + number, tie, name

    async def _length(self, node: Node, line: StageWorker) -> float:
        """The norm of the whole model's gradient."""
        mine = self.grad.norm() ** 2
        others = [stage for stage in range(self.place.stages) if stage != self.place.stage]
        for stage in others:
            await node.send(Address(STAGE, stage), Length(node.step, line.since, mine), priority=FIRST)
        squares = {stage: (await line.take(node, Length, stage, node.step)).square for stage in others}
        squares[self.place.stage] = mine
        return sqrt(max(0.0, sum(squares[stage] for stage in sorted(squares))))

    def _slot(self, name: str) -> TensorSlot:
        return next(slot for slot in self.layout.slots if slot.name == name)
