"""Rows of all workers in the middle of a step, for losses over the batch of all of them; gradients flow back.

```
            rows      of all             loss of this worker    gradients, by owner    added up
worker 0    a a       a a b b      ─►    over a a b b     ─►    da da | db db    ─►    da + da'
worker 1    b b       a a b b      ─►    over a a b b     ─►    da'da'| db'db'   ─►    db + db'
```
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from covey.errors import PlanError
from covey.message import Address, Message
from covey.program import Node
from covey.task.arguments import describe
from covey.vector import Vector


class WorkerRows(Message):
    """One worker's rows, or gradients of the receiver's. `step` numbers exchanges."""

    wire_name = "gathered.rows"

    step: int
    shape: list[int]
    rows: Vector

    finite = False  # what is not a number in a loss is the loop's to see


class GatheringWorkers:
    """The workers that take each step together; `weight` is what this one's batch counts."""

    def __init__(self, rank: int, workers: int, weight: Callable[[], float]) -> None:
        self.rank, self.weight = rank, weight
        self.peers = [Address("worker", peer) for peer in range(workers)]
        self.node: Node | None = None  # of this worker's role
        self.calls = 0

    def gather(self, rows: Tensor) -> Tensor:
        """(In the user's loop, while a gradient is asked for) The rows of all, by rank."""
        self.calls += 1
        anchor = torch.zeros((), requires_grad=True)  # backward must come here also where these rows need no gradient
        found: Tensor = _GatheredRows.apply(rows, anchor, self, 2 * self.calls)  # type: ignore[no-untyped-call]
        return found

    def swap(self, number: int, parts: Sequence[Tensor]) -> list[Tensor]:
        """Give each worker its part, and take the one that it has for this worker."""
        assert self.node is not None, "a loop gathers while its role waits for a gradient"
        return self.node.consult(self._swap(self.node, number, parts), 1.0)

    async def _swap(self, node: Node, number: int, parts: Sequence[Tensor]) -> list[Tensor]:
        for peer, part in zip(self.peers, parts, strict=True):
            if peer != node.address:
                message = WorkerRows(number, list(part.shape), Vector([part.reshape(-1)]))
                await node.send(peer, message, priority=1)
        mine, found = parts[self.rank], []
        for peer in self.peers:
            if peer == node.address:
                found.append(mine)
                continue
            came = await node.receive(WorkerRows, sender=peer, step=number)
            flat = came.rows.parts[0]
            if flat.dtype != mine.dtype or came.shape[1:] != list(mine.shape[1:]) or min(came.shape) < 0:
                raise PlanError(
                    f"member.gather: {peer} has rows of {came.shape[1:]} and {flat.dtype}, and {node.address} has rows "
                    f"of {list(mine.shape[1:])} and {mine.dtype}: only the number of rows may differ"
                )
            found.append(flat.to(mine.device).view(came.shape))
        return found


class _GatheredRows(torch.autograd.Function):
    """All rows on every worker; a row's gradient is the sum of what the losses of all workers say of it."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, anchor: Tensor, group: GatheringWorkers, number: int) -> Tensor:
        found = group.swap(number, [rows.contiguous()] * len(group.peers))
        ctx.group, ctx.number, ctx.sizes = group, number, [len(one) for one in found]
        return torch.cat(found)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # create_graph; this gradient is of all workers' losses, without their graphs
            raise PlanError(
                "member.gather: no gradient of a gradient flows through gathered rows (create_graph=True, as for a "
                "gradient penalty): compute it from this worker's own rows, before member.gather"
            )
        # A gradient counts by its worker's samples when all are averaged, and so must its way to other workers' rows.
        weight = ctx.group.weight()
        came = ctx.group.swap(ctx.number + 1, (grads[0] * weight).split(ctx.sizes))
        return torch.stack(came).sum(0) / weight, None, None, None


def check_rows(tensor: object) -> Tensor:
    """Refuse what has no rows."""
    if isinstance(tensor, Tensor) and tensor.dim() and tensor.layout == torch.strided:
        return tensor
    what = "one number" if isinstance(tensor, Tensor) and not tensor.dim() else describe(tensor)
    raise PlanError(f"member.gather takes a tensor with rows, such as member.gather(model(x)), not {what}")
