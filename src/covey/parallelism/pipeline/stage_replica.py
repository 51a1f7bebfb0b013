"""A stage of a pipeline as a replica: its gradient is found together with the other stages, move by move."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import nan

import torch
from torch import nn

from covey.message import Address
from covey.model.batches import Batch, BatchSource
from covey.model.flat import Flat
from covey.model.replica_spec import ReplicaSpec
from covey.model.slots import TensorSlot
from covey.parallelism.axis import AGE, STAGE
from covey.parallelism.cut_replica import CutReplica
from covey.parallelism.parameter_map import ParameterMap
from covey.parallelism.pipeline.stage_compute import StageCompute, Version
from covey.parallelism.pipeline.stage_worker import FIRST, PipelinePlace, StageWorker, Told
from covey.parallelism.pipeline.stash import STASH, Stash
from covey.parallelism.stages import Tie
from covey.parallelism.tensor.slices import TensorSlices
from covey.program import Node
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
    weights: Mapping[str, nn.Parameter]  # on which its layers compute, by their names in the whole model
    ties: Mapping[str, Tie]  # of the whole model, by the names of its parameters
    bulk: int  # bytes that go from one stage to the next for a batch
    slices: TensorSlices | None = None  # where layers are divided, too


class StageReplica(CutReplica):
    """One worker's part of a replica; strategies do with its part of a gradient what they do with a whole one."""

    parts: StageParts
    instead = "a cut model cannot give: use bsp or ssp"
    mesh = "mesh(stage=..., tensor=...)"

    def __init__(self, parts: StageParts, given: ReplicaSpec, batch_source: BatchSource) -> None:
        self.owns = "slices" if parts.slices else ""  # type: ignore[misc]  # whole parameters without
        super().__init__(parts, given, batch_source)
        self.place = parts.place
        self._line: StageWorker | None = None
        self._stash: Stash | None = None

    def changing(self) -> list[object]:
        work, slices = self.parts.stage_compute, self.parts.slices
        return [*super().changing(), *([work, work.microbatches] if work else []), *([slices.group] if slices else [])]

    def enter(self, node: Node) -> None:
        self._line = None
        if not self.place.schedule.flushes:
            self._stash = Stash(node.remember(STASH, {}), self.layout)

    # -- gradients ------------------------------------------------------------------------------------------------

    async def computed(self, node: Node) -> Batch:
        """Leave this stage's part of the mean gradient of a batch in `grad`.

        Where the timetable flushes all of it is computed at the weights as they are now; where it does not each batch
        has the version of the weights that its timetable says, forward and backward.
        """
        self.compute.working.refresh()
        line = self._line = self._line or StageWorker(self.place, self._compute, node)
        self.layout.clear()
        if slices := self.parts.slices:
            slices.clear()
            await slices.bring_shared(node, self.buffers)
            slices.group.begin(node)
        await self._lend(node, line)
        await (self._flushed if self.place.schedule.flushes else self._flowing)(node, line)
        self.layout.collect()
        await self._give_back(node, line)
        loss = self._compute.mean_loss() if self.place.last else nan
        return Batch(loss, self._compute.microbatches.whole(node.step))

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
        else:
            await self.compute.tell_routing(node)

    @property
    def _compute(self) -> StageCompute:
        assert self.parts.stage_compute is not None, "this role has no data"
        return self.parts.stage_compute

    # -- what stages settle among themselves ------------------------------------------------------------------------

    async def _lend(self, node: Node, line: StageWorker) -> None:
        """Bring weights that several stages use from their owner to the others: all compute on the same bits."""
        for step, tie, name in self._ties(node):
            owner, *others = tie.stages
            weight = self.parts.weights[name]
            if self.place.stage == owner:
                for stage in others:
                    body = Lent(step, line.since, Vector([weight.detach()]))
                    await node.send(Address(STAGE, stage), body, priority=FIRST)
            else:
                lent = await line.take(node, Lent, owner, step)
                weight.data.copy_(lent.values.parts[0].view_as(weight))
                weight.grad = None

    async def _give_back(self, node: Node, line: StageWorker) -> None:
        """Bring the gradients of borrowed weights to their owner, which adds them in the order of stages."""
        for step, tie, name in self._ties(node):
            owner, *others = tie.stages
            weight = self.parts.weights[name]
            if self.place.stage == owner:
                for stage in others:
                    theirs = (await line.take(node, Twin, stage, step)).values.parts[0]
                    if name in self.layout.parameters:  # else another member of its tensor group owns it
                        grad = self._slot(name).view(self.grad)
                        grad.add_(theirs.view_as(grad).to(grad.device))
            else:
                grad = torch.zeros_like(weight) if weight.grad is None else weight.grad
                await node.send(Address(STAGE, owner), Twin(step, line.since, Vector([grad])), priority=FIRST)

    def _ties(self, node: Node) -> Iterator[tuple[int, Tie, str]]:
        """The ties of this stage, each with a number of its own in the whole run, and its name."""
        for number, (name, tie) in enumerate(self.parts.ties.items()):
            if self.place.stage in tie.stages:
                yield node.step * len(self.parts.ties) + number, tie, name

    async def square(self, node: Node, mine: float) -> float:
        """Along the pipeline, of what those who divide the layers of a stage have together."""
        line = self._line
        assert line is not None, "a gradient was computed"
        mine = await self.parts.slices.square(node, mine) if self.parts.slices else mine
        others = [stage for stage in range(self.place.stages) if stage != self.place.stage]
        for stage in others:
            await node.send(Address(STAGE, stage), Length(node.step, line.since, mine), priority=FIRST)
        squares = {stage: (await line.take(node, Length, stage, node.step)).square for stage in others}
        squares[self.place.stage] = mine
        return sum(squares[stage] for stage in sorted(squares))

    def _slot(self, name: str) -> TensorSlot:
        return next(slot for slot in self.layout.slots if slot.name == name)
