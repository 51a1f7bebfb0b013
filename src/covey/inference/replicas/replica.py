"""A replica: computes batches; inputs that the model cannot compute do not spoil the answers to others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from covey.inference.batch_times import resized
from covey.inference.messages import FRONT, AnsweredBatch, ReplicaReady, RequestBatch
from covey.program import Node
from covey.vector import Vector

BatchModel = Callable[[Tensor], Tensor]
LONGEST = 300  # characters of a reason


@dataclass(frozen=True, slots=True)
class BatchTrial:
    """What a replica measures before it is ready: batches of 1, 2, 4 and so on, made of an example.

    Args:
        example: A few inputs.
        budget: Seconds; the first size that takes longer is the last one.
        largest: The largest size.
    """

    example: Tensor
    budget: float
    largest: int


async def replica(node: Node, model: BatchModel, trial: BatchTrial | None = None) -> None:
    """Answer batches until the end."""
    times = await measured(node, model, trial) if trial else {}
    await node.send(FRONT, ReplicaReady(tuple(times), tuple(times.values())))
    while True:
        batch = await node.receive(RequestBatch)
        rows = batch.rows.parts[0]
        try:
            answers = await node.compute(lambda rows=rows: model(rows), load=len(rows))  # type: ignore[misc]
            answered = AnsweredBatch(batch.number, Vector([answers]))
        except Exception:
            answered = await one_by_one(node, model, batch)
        await node.send(FRONT, answered, loan=True, paced=True)


async def measured(node: Node, model: BatchModel, trial: BatchTrial) -> dict[int, float]:
    """Seconds of batches by their size; the first call of a model, which takes longer, is not counted."""
    found: dict[int, float] = {}
    size = 1
    await node.compute(lambda: model(resized(trial.example, 1)))
    while size not in found:
        rows, begin = resized(trial.example, size), await node.now()
        try:
            await node.compute(lambda rows=rows: model(rows), load=size)  # type: ignore[misc]
        except Exception:
            if not found:
                raise
            return found  # it cannot compute so many at a time
        found[size] = await node.now() - begin
        if found[size] <= trial.budget:
            size = min(2 * size, trial.largest)
    return found


async def one_by_one(node: Node, model: BatchModel, batch: RequestBatch) -> AnsweredBatch:
    """The answers to a batch that failed as a whole."""
    answers, reasons = [], []
    for row in batch.rows.parts[0].split(1):
        try:
            answers.append(await node.compute(lambda row=row: model(row)))  # type: ignore[misc]
            reasons.append("")
        except Exception as error:
            reasons.append(f"{type(error).__name__}: {error}"[:LONGEST])
    return AnsweredBatch(batch.number, Vector([torch.cat(answers)] if answers else []), tuple(reasons))
