"""A replica: computes batches; inputs that the model cannot compute do not spoil the answers to others."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from covey.inference.messages import FRONT, AnsweredBatch, ReplicaReady, RequestBatch
from covey.program import Node
from covey.vector import Vector

BatchModel = Callable[[Tensor], Tensor]
LONGEST = 300  # characters of a reason


async def replica(node: Node, model: BatchModel) -> None:
    """Answer batches until the end."""
    await node.send(FRONT, ReplicaReady())
    while True:
        batch = await node.receive(RequestBatch)
        rows = batch.rows.parts[0]
        try:
            answers = await node.compute(lambda rows=rows: model(rows), load=len(rows))  # type: ignore[misc]
            answered = AnsweredBatch(batch.number, Vector([answers]))
        except Exception:
            answered = await one_by_one(node, model, batch)
        await node.send(FRONT, answered, loan=True, paced=True)


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
