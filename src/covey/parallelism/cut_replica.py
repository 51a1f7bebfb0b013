"""What parts of a model have in common as replicas: their gradient is that of their own batch, and whole."""

from __future__ import annotations

from math import sqrt
from typing import Any, ClassVar, Protocol

import torch

from covey.errors import PlanError
from covey.model.batches import Batch, BatchSource
from covey.model.flat import Flat
from covey.model.replica import Replica
from covey.model.replica_spec import ReplicaSpec
from covey.model.scored import Snapshot
from covey.model.stream import GradientStream
from covey.parallelism.parameter_map import ParameterMap
from covey.program import Node
from covey.vector import Vector


class ModelPart(Protocol):
    """A role's part of a model."""

    @property
    def layout(self) -> Flat:
        """What it owns."""

    @property
    def whole(self) -> ParameterMap:
        """Where that lies in the whole model."""

    @property
    def bulk(self) -> int:
        """Bytes of the largest thing that those with parts of one replica send each other."""


class CutReplica(Replica):
    """One role's part of a replica; strategies do with its part of a gradient what they do with a whole one."""

    parts: ModelPart
    instead: ClassVar[str]  # what such a model cannot do, and which strategies work
    mesh: ClassVar[str]  # what divides the model, for messages
    owns: ClassVar[str] = ""  # what members own of each parameter, where that is not all of it

    def __init__(self, parts: ModelPart, given: ReplicaSpec, batch_source: BatchSource) -> None:
        task = given.task
        super().__init__(
            parts.layout.modules[0], task.optimizer, batch_source, rate=task.rate, budget=given.budget,
            clip_norm=task.clip_norm, pace=given.pace, layout=parts.layout,
        )  # fmt: skip
        self.parts = parts
        if self.owns and self.compute.norms:
            raise PlanError(f"nn.SyncBatchNorm and {self.mesh}: it would need the batches of all; use nn.BatchNorm")
        if self.owns and not self.elementwise:
            raise PlanError(
                f"{type(self.optimizer).__name__} looks at whole parameters, and members of {self.mesh} own "
                f"{self.owns} of them: use an element-wise optimizer (SGD, Adam, ...), or `sliced`, which gives whole "
                "parameters to owners"
            )

    @property
    def bulk(self) -> int:
        return max(super().bulk, self.parts.bulk)

    # -- gradients ------------------------------------------------------------------------------------------------

    async def gradient(self, node: Node, clip: bool = True) -> Vector:
        """This part of the mean gradient over the batches of its replica."""
        await self.report(node, await self.computed(node))
        if clip and self.updates.clip_norm is not None:
            norm = sqrt(max(await self.square(node, self.grad.norm() ** 2), 0.0))  # NaN stays
            return self.updates.clip_(self.grad, norm)
        return self.grad

    async def computed(self, node: Node) -> Batch:
        """Leave this part of the gradient in `grad`, together with the others of the replica."""
        raise NotImplementedError

    async def square(self, node: Node, mine: float) -> float:
        """The sum of what all members of the replica have, such as their parts' squares."""
        raise NotImplementedError

    async def descend(self, node: Node) -> None:
        await self.gradient(node)
        self.update()

    async def gradient_of(self, node: Node, rank: int, step: int, part: int = 0, parts: int = 1) -> Vector:
        raise self._refusal()

    def stream(self, node: Node, bucket_bytes: int = 4 << 20, otherwise: str = "bucket=0") -> GradientStream:
        raise self._refusal()

    def differentiate(self, step: int, flat: bool = True) -> Batch:
        raise self._refusal()

    def _refusal(self) -> PlanError:
        return PlanError(f"this strategy wants gradients of its own choice, or in pieces, which {self.instead}")

    def state(self) -> dict[str, Any]:
        """As of any replica, with which numbers of each parameter it has: another layout may go on from that."""
        runs, shapes = self.parts.whole.runs, self.parts.whole.shapes
        some = [slot.name for slot in self.layout.slots if slot.name in runs]
        said = {name: torch.tensor(runs[name], dtype=torch.int64).reshape(-1, 2) for name in some}
        return {**super().state(), "runs": said, "shapes": {name: list(shapes[name]) for name in some}}

    def snapshot(self, scored: bool = True, counts: bool = False) -> Snapshot:
        """As of any replica, its pieces being those of the whole model."""
        return self.parts.whole.of(super().snapshot(scored, counts), scored)
