"""A member of a tensor group as a replica: it owns slices of divided parameters, and some of those that all have."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from covey.model.batches import Batch
from covey.model.flat import Flat
from covey.model.replica import Replica
from covey.parallelism.cut_replica import CutReplica
from covey.parallelism.parameter_map import ParameterMap
from covey.parallelism.tensor.slices import TensorSlices
from covey.program import Node


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorParts:
    """What one member has, and how it takes part."""

    slices: TensorSlices
    layout: Flat  # of what it owns
    whole: ParameterMap
    bulk: int  # bytes of the largest thing that members send


class TensorReplica(CutReplica):
    """One member's slices of a model."""

    parts: TensorParts
    instead = "divided layers cannot give: use allreduce or bsp"
    mesh = "mesh(tensor=...)"
    owns = "slices"

    def changing(self) -> list[object]:
        return [*super().changing(), self.parts.slices.group]

    async def computed(self, node: Node) -> Batch:
        """This member's part of the mean gradient of a batch, which all members compute together."""
        self.compute.working.refresh()
        slices = self.parts.slices
        await slices.bring_shared(node, self.buffers)
        slices.group.begin(node)
        self.compute.begins()
        batch: Batch = await node.compute(partial(self._differentiate, node.step), slices.load, talks=True)
        return batch

    def _differentiate(self, step: int) -> Batch:
        """(On the compute thread) This member's forward and backward."""
        try:
            return Replica.differentiate(self, step)
        finally:
            self.parts.slices.group.forget()

    async def square(self, node: Node, mine: float) -> float:
        return await self.parts.slices.square(node, mine)
