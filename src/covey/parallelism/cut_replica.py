"""What parts of a model have in common as replicas: their gradient is that of their own batch, and whole."""

from __future__ import annotations

from typing import ClassVar, Protocol

from covey.errors import PlanError
from covey.model.batches import Batch
from covey.model.replica import Replica
from covey.model.scored import Snapshot
from covey.model.stream import GradientStream
from covey.parallelism.parameter_map import ParameterMap
from covey.program import Node
from covey.vector import Vector


class ModelPart(Protocol):
    """A role's part of a model."""

    @property
    def whole(self) -> ParameterMap:
        """Where it lies in the whole model."""

    @property
    def bulk(self) -> int:
        """Bytes of the largest thing that those with parts of one replica send each other."""


class CutReplica(Replica):
    """One role's part of a replica; strategies do with its part of a gradient what they do with a whole one."""

    parts: ModelPart
    instead: ClassVar[str]  # what such a model cannot do, and which strategies work

    @property
    def bulk(self) -> int:
        return max(super().bulk, self.parts.bulk)

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

    def snapshot(self, scored: bool = True, counts: bool = False) -> Snapshot:
        """As of any replica, its pieces being those of the whole model."""
        return self.parts.whole.of(super().snapshot(scored, counts), scored)
