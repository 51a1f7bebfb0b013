"""A stage of a replica: computes its part of the model for one batch after another, and passes on what it made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from covey.inference.messages import FRONT, AnsweredBatch, ReplicaReady, RequestBatch, StageValues
from covey.inference.replicas.replica import LONGEST, BatchModel, BatchTrial, measured
from covey.message import Address
from covey.program import Node
from covey.vector import Vector

PartModel = Callable[[Sequence[Tensor], int], Sequence[Tensor]]  # what a stage makes of values for so many inputs


@dataclass(frozen=True, slots=True)
class StagePlace:
    """Which stage of which replica."""

    replica: int
    number: int
    stages: int

    @property
    def address(self) -> Address:
        """The first stage takes the batches of its replica."""
        if self.number == 0:
            return Address("replica", self.replica)
        return Address("stage", self.replica * self.stages + self.number)

    @property
    def next(self) -> Address:
        """Who takes what this stage makes."""
        return FRONT if self.last else StagePlace(self.replica, self.number + 1, self.stages).address

    @property
    def last(self) -> bool:
        return self.number == self.stages - 1


async def first_stage(node: Node, place: StagePlace, part: PartModel, example: Tensor) -> None:
    """Take batches of the front until the end; before them goes an example, which tells when all stages are ready."""
    await pass_on(node, place, part, StageValues(0, len(example), Vector([example])))
    while True:
        batch = await node.receive(RequestBatch)
        await pass_on(node, place, part, StageValues(batch.number, len(batch.rows.parts[0]), batch.rows))


async def middle_stage(node: Node, place: StagePlace, part: PartModel) -> None:
    """Compute what the stage before has passed on, until the end."""
    while True:
        await pass_on(node, place, part, await node.receive(StageValues))


async def last_stage(node: Node, part: PartModel, whole: BatchModel, trial: BatchTrial | None) -> None:
    """Answer batches until the end; how long they take all stages together is measured first."""
    times = await measured(node, whole, trial) if trial else {}
    while True:
        made = await computed(node, part, await node.receive(StageValues))
        if made.number == 0:
            assert not made.reason, f"the example could not be computed: {made.reason}"
            await node.send(FRONT, ReplicaReady(tuple(times), tuple(times.values())))
        elif not made.reason:
            await node.send(FRONT, AnsweredBatch(made.number, made.values), loan=True, paced=True)
        elif made.count == 1:
            await node.send(FRONT, AnsweredBatch(made.number, Vector([]), (made.reason,)))
        else:
            await node.send(FRONT, AnsweredBatch(made.number, Vector([]), apart=True))


async def pass_on(node: Node, place: StagePlace, part: PartModel, taken: StageValues) -> None:
    """Compute a batch, and let the next stage have it."""
    await node.send(place.next, await computed(node, part, taken), loan=True, paced=True)


async def computed(node: Node, part: PartModel, taken: StageValues) -> StageValues:
    """What this stage makes of a batch, or why it, or one before, cannot."""
    if taken.reason:
        return taken
    try:
        made = await node.compute(lambda: part(taken.values.parts, taken.count), load=taken.count)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"[:LONGEST]
        return StageValues(taken.number, taken.count, Vector([]), reason)
    return StageValues(taken.number, taken.count, Vector(list(made)))
