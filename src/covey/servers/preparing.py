"""Preparers: roles that transform samples for workers (Project Adam, Chilimbi et al. 2014).

A worker asks for its batches ahead, and computes on them when their step comes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from covey.errors import PlanError, WireError
from covey.message import Address, Message
from covey.model.batches import BatchSource
from covey.model.replica import Replica
from covey.program import Compute, Node, Program
from covey.servers.goodbye import Goodbye
from covey.servers.server_program import ServerProgram, serve
from covey.strategy import Role
from covey.task.arguments import describe
from covey.vector import Vector

AHEAD = 2  # batches that a worker has asked of each preparer


class PrepareRequest(Message):
    """Prepare the sender's batch of this step."""

    wire_name = "preparers.request"
    counted = kept = False

    step: int


class PreparedBatch(Message):
    """A batch, or one of those that a step accumulates, which come in order; `form` is what held its tensors."""

    wire_name = "preparers.batch"
    counted = kept = finite = False

    step: int
    form: str
    tensors: Vector


FORMS: dict[str, Callable[[tuple[Tensor, ...]], Any]] = {"tensor": lambda one: one[0], "tuple": tuple, "list": list}


def packed(step: int, batch: Any) -> PreparedBatch:
    """A batch as it travels."""
    parts = [batch] if isinstance(batch, Tensor) else batch
    if not isinstance(parts, tuple | list) or not all(isinstance(part, Tensor) for part in parts):
        raise PlanError(
            f"Task(preparers=…): the data gives {describe(batch)}, and what preparers send is a tensor, or a tuple or "
            "list of tensors: let transform or collate_fn return that"
        )
    form = "tensor" if isinstance(batch, Tensor) else "tuple" if isinstance(batch, tuple) else "list"
    return PreparedBatch(step, form, Vector(parts))


def unpacked(message: PreparedBatch) -> Any:
    """The batch that came."""
    if message.form not in FORMS or (message.form == "tensor" and len(message.tensors.parts) != 1):
        raise WireError(f"{message.sender} sent a batch that cannot be read: {message.form[:20]!r}")
    return FORMS[message.form](tuple(message.tensors.parts))


class PreparedBatches:
    """What a worker has asked its preparers for; they take turns, so that each has equally many of its batches."""

    def __init__(self, source: BatchSource, preparers: int) -> None:
        self.source, self.preparers = source, preparers
        self.pending: set[int] = set()

    def preparer(self, rank: int, step: int) -> Address:
        return Address("preparer", (rank + step) % self.preparers)

    async def arrive(self, node: Node) -> None:
        """Ask for the batches of this step and the next ones, and wait for those of this step."""
        step, limit = node.step, node.limits[node.rank]
        until = step + AHEAD * self.preparers
        for number in range(step, until if limit is None else max(step + 1, min(until, limit))):
            if number not in self.pending:
                self.pending.add(number)
                await node.send(self.preparer(node.rank, number), PrepareRequest(number))
        arrived, sender = self.source.arrived, self.preparer(node.rank, step)
        assert arrived is not None, "only a worker has preparers"
        arrived.clear()
        arrived[step] = [
            unpacked(await node.receive(PreparedBatch, sender=sender, step=step))
            for _ in range(self.source.pieces(node.rank, step))
        ]
        self.pending.discard(step)


class Preparer(ServerProgram):
    """Transform the samples of whichever batch a worker asks for."""

    def __init__(self, node: Node, replica: Replica) -> None:
        super().__init__(node, replica)
        self.hears = {PrepareRequest: self.prepare}

    async def prepare(self, request: PrepareRequest) -> None:
        source = self.replica.batch_source
        assert source.prepare is not None, "a preparer has the data"
        who, step = request.sender, request.step
        work, reads = partial(source.prepare, who.rank, step), source.reads and partial(source.reads, who.rank, step)
        for batch in await Compute(work, load=0.0, prepares=1.0, reads=reads):
            await self.node.send(who, packed(step, batch))


async def on_prepared(node: Node, replica: Replica, *, work: Program, preparers: int) -> None:
    """A worker's program, on batches that preparers send."""
    coming = PreparedBatches(replica.batch_source, preparers)
    replica.batch_source = replace(replica.batch_source, arrive=coming.arrive)
    await work(node, replica)
    for number in range(preparers):
        await node.send(Address("preparer", number), Goodbye())


def with_preparers(roles: Sequence[Role], preparers: int, leased: bool = False) -> list[Role]:
    """The roles of a run, and this many preparers for its workers."""
    if preparers and leased:
        raise PlanError("Task(preparers=…): workers that come and go transform their samples themselves: use 0")
    if preparers and any(role.part for role in roles):
        raise PlanError("Task(preparers=…) and a model that is cut: its workers transform samples themselves: use 0")
    if not preparers:
        return list(roles)
    served = [
        replace(role, program=partial(on_prepared, work=role.program, preparers=preparers)) if role.trains else role
        for role in roles
    ]
    return served + [Role(Address("preparer", number), partial(serve, Preparer)) for number in range(preparers)]
