"""A part of a model that has only its shapes, and asks for what a real one was seen to ask for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import nan

from msgspec.structs import replace as changed
from torch import nn

from covey.errors import PlanError
from covey.model.batches import Batch, BatchSource
from covey.model.replica import Replica
from covey.model.stream import GradientStream
from covey.model.timed.stand_in import FrozenOptimizer
from covey.parallelism.timed.recorded_step import (
    TURNS,
    RecordedEffect,
    RecordedReceive,
    RecordedSend,
    RecordedStep,
    RecordedWork,
)
from covey.program import Node
from covey.vector import Vector

REFUSED = "this strategy wants gradients of its own choice, or in pieces, which a cut model cannot give: use bsp"


class TimedPart(Replica):
    """One role's part of a replica in a run that is only timed; `steps` says what a worker does in a step."""

    def __init__(
        self, module: nn.Module, batch_source: BatchSource, steps: Callable[[int, int], RecordedStep] | None
    ) -> None:  # fmt: skip
        super().__init__(module, partial(FrozenOptimizer, lr=0.0), batch_source)
        self._steps = steps

    async def gradient(self, node: Node, clip: bool = True) -> Vector:
        """Nothing but its time and its messages."""
        assert self._steps is not None, "this role has no data"
        found = self._steps(node.rank, node.step)
        await self._perform(node, found.gradient)
        await self.report(node, Batch(nan, found.samples, found.seen))
        if clip:
            await self._perform(node, found.norm)
        return self.grad

    async def announce(self, node: Node) -> None:
        """Whoever has no samples left in a pass has nothing to tell."""
        if self.batch.seen:
            await super().announce(node)

    async def descend(self, node: Node) -> None:
        await self.gradient(node)
        self.update()

    async def gradient_of(self, node: Node, rank: int, step: int, part: int = 0, parts: int = 1) -> Vector:
        raise PlanError(REFUSED)

    def stream(self, node: Node, bucket_bytes: int = 4 << 20, otherwise: str = "bucket=0") -> GradientStream:
        raise PlanError(REFUSED)

    def differentiate(self, step: int, flat: bool = True) -> Batch:
        raise PlanError(REFUSED)

    async def _perform(self, node: Node, effects: Sequence[RecordedEffect]) -> None:
        for one in effects:
            if isinstance(one, RecordedSend):
                body = changed(one.effect.body, step=node.step * TURNS + one.number)
                await changed(one.effect, body=body)
            elif isinstance(one, RecordedReceive):
                number = (node.step - one.ago) * TURNS + one.number
                await node.receive(one.kind, sender=one.sender, step=number)
            elif isinstance(one, RecordedWork):
                await node.compute(partial(self._work, node, one), one.load, one.talks, one.prepares)
            else:
                await one

    def _work(self, node: Node, work: RecordedWork) -> None:
        """(On the compute thread) Nothing but its questions."""
        for progress, effects in work.questions:
            node.consult(self._perform(node, effects), progress)
