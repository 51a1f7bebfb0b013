"""A member of a tensor group as a replica: it owns slices of divided parameters, and some of those that all have."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from math import sqrt

from torch import nn

from covey.errors import PlanError
from covey.message import Address, Message
from covey.model.batches import Batch, BatchSource
from covey.model.flat import Flat
from covey.model.optimizers import MakeOptimizer
from covey.model.replica import Replica
from covey.parallelism.axis import TENSOR
from covey.parallelism.cut_replica import CutReplica
from covey.parallelism.parameter_map import ParameterMap
from covey.parallelism.tensor.group import MemberGroup
from covey.program import Node
from covey.settings import SchedulePace
from covey.vector import Vector

BUFFERS = 0  # whose float buffers count


class OwnedParameters(Message):
    """What a member owns of the parameters that all members have, and the float buffers of the first one."""

    wire_name = "tensor.owned_parameters"

    step: int
    numbers: Vector


class SliceSquare(Message):
    """How long the gradient of what a member owns is, squared."""

    wire_name = "tensor.slice_square"

    step: int
    square: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorParts:
    """What one member has, and how it takes part."""

    group: MemberGroup
    module: nn.Module
    layout: Flat  # of what it owns
    whole: ParameterMap
    shared: Mapping[str, nn.Parameter]  # that all members have, and compute on
    owners: Mapping[str, int]  # of those
    load: float  # what of a batch's compute it does
    bulk: int  # bytes of the largest thing that members send


class TensorReplica(CutReplica):
    """One member's slices of a model."""

    parts: TensorParts
    instead = "divided layers cannot give: use allreduce or bsp"

    def __init__(
        self, parts: TensorParts, optimizer: MakeOptimizer, batch_source: BatchSource, *,
        rate: Callable[[float], float] | None, budget: int | None, clip_norm: float | None, pace: SchedulePace | None,
    ) -> None:  # fmt: skip
        super().__init__(
            parts.module, optimizer, batch_source,
            rate=rate, budget=budget, clip_norm=clip_norm, pace=pace, layout=parts.layout,
        )  # fmt: skip
        if self.compute.norms:
            raise PlanError("nn.SyncBatchNorm and mesh(tensor=...): its statistics are whole values; use nn.BatchNorm")
        if not self.elementwise:
            raise PlanError(
                f"{type(self.optimizer).__name__} looks at whole parameters, and members of mesh(tensor=...) own "
                "slices of them: use an element-wise optimizer (SGD, Adam, ...)"
            )
        self.parts = parts

    def changing(self) -> list[object]:
        return [*super().changing(), self.parts.group]

    # -- gradients ------------------------------------------------------------------------------------------------

    async def gradient(self, node: Node, clip: bool = True) -> Vector:
        """This member's part of the mean gradient of a batch, which all members compute together."""
        self.compute.working.refresh()
        await self._bring_shared(node)
        self.parts.group.begin(node)
        work = partial(self._differentiate, node.step)
        self.compute.begins()
        self.compute.batch = await node.compute(work, self.parts.load, talks=True)
        await self.announce(node)
        if clip and self.updates.clip_norm is not None:
            return self.updates.clip_(self.grad, await self._length(node))
        return self.grad

    def _differentiate(self, step: int) -> Batch:
        """(On the compute thread) This member's forward and backward."""
        try:
            return Replica.differentiate(self, step)
        finally:
            self.parts.group.forget()

    async def _bring_shared(self, node: Node) -> None:
        """Let everybody compute on the owners' numbers, and on the first member's buffers."""
        me = self.parts.group.me
        mine = self._shared(me)
        for member in self._others():
            await node.send(Address(TENSOR, member), OwnedParameters(node.step, mine))
        for member in self._others():
            theirs = await node.receive(OwnedParameters, sender=Address(TENSOR, member), step=node.step)
            self._shared(member).copy_(theirs.numbers)

    def _shared(self, member: int) -> Vector:
        owners = self.parts.owners
        found = [one.data.view(-1) for name, one in self.parts.shared.items() if owners[name] == member]
        return Vector([*found, *(self.buffers.parts if member == BUFFERS else ())])

    async def _length(self, node: Node) -> float:
        """The norm of the whole model's gradient."""
        mine = self.grad.norm() ** 2
        for member in self._others():
            await node.send(Address(TENSOR, member), SliceSquare(node.step, mine))
        squares = {self.parts.group.me: mine}
        for member in self._others():
            came = await node.receive(SliceSquare, sender=Address(TENSOR, member), step=node.step)
            squares[member] = came.square
        return sqrt(max(sum(squares[member] for member in sorted(squares)), 0.0))  # NaN stays

    def _others(self) -> Iterator[int]:
        group = self.parts.group
        return (member for member in range(group.members) if member != group.me)
