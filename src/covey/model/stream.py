"""A gradient in pieces: each is handed out as soon as backward has finished it, last layers first."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Protocol

from torch import Tensor

from covey.errors import PlanError
from covey.message import Message
from covey.model.batches import Batch, BatchSource
from covey.model.compute_shares import in_backward
from covey.model.differentiation import Differentiation
from covey.model.flat import Flat
from covey.model.slots import TensorSlot
from covey.program import Node
from covey.vector import Piece


class GradientBucket(Message):
    """A piece of the gradient is ready (from a role to itself)."""

    wire_name = "stream.bucket"

    step: int
    index: int

    counted = False


class Streamed(Protocol):
    """What a stream needs of the replica whose gradient it hands out."""

    layout: Flat
    compute: Differentiation
    batch_source: BatchSource

    def differentiate(self, step: int) -> Batch: ...
    async def announce(self, node: Node) -> None: ...


END = -1  # the step of the bucket that says that the whole backward is through


def refuse_repeats(source: BatchSource, otherwise: str) -> None:
    """Refuse what hands out gradients while backward runs, where a batch may be repeated with another scale."""
    if source.scale:
        raise PlanError(f"precision='fp16' may repeat a batch, so no gradient may leave early: use {otherwise}")
    if source.whole:
        raise PlanError(f"Task(private=…) adds noise to whole gradients, so none may leave early: use {otherwise}")


class GradientStream(AsyncIterator[Piece]):
    """Pieces of the gradient, each when backward has finished it and those before it.

    Their order follows from the model alone: workers that sum them must not wait for different ones.
    """

    def __init__(self, replica: Streamed, node: Node, bucket_bytes: int, otherwise: str) -> None:
        self._replica, self._node, self._step, self._otherwise = replica, node, node.step, otherwise
        refuse_repeats(replica.batch_source, otherwise)
        self._buckets = _buckets(replica.layout, bucket_bytes)
        self._given = -1
        self._ready: set[int] = set()

    async def __anext__(self) -> Piece:
        if self._given < 0:
            await self._node.spawn(self._run())
        self._given += 1
        if self._given == len(self._buckets):
            await self._node.receive(GradientBucket, sender=self._node.address, step=END)
            await self._replica.announce(self._node)
            raise StopAsyncIteration
        while self._given not in self._ready:
            self._ready.add(
                (await self._node.receive(GradientBucket, sender=self._node.address, step=self._step)).index
            )
        return self._replica.layout.piece(self._buckets[self._given])

    async def _run(self) -> None:
        """Compute, and post each bucket as soon as its last gradient is there."""
        missing = [len(bucket) for bucket in self._buckets]
        posted: set[int] = set()

        def finished(index: int, _: Tensor) -> None:
            if not self._replica.batch_source.last():
                return
            if index in posted:  # and perhaps summed already
                raise PlanError(
                    f"backward ran twice in a step, so no gradient may leave before its end: use {self._otherwise}"
                )
            missing[index] -= 1
            if missing[index] == 0:
                self._replica.layout.collect_grads(self._buckets[index])
                post(index)

        def post(index: int) -> None:
            posted.add(index)
            done = in_backward(len(posted), len(missing))
            self._node.host.post(GradientBucket(self._step, index, sender=self._node.address), done)

        parameters = self._replica.layout.parameters
        hooks = [
            parameters[slot.name].register_post_accumulate_grad_hook(partial(finished, index))
            for index, bucket in enumerate(self._buckets)
            for slot in bucket
            if parameters[slot.name].requires_grad  # one that a loop of the user's own has frozen takes no hook
        ]

        def work() -> Batch:
            batch = self._replica.differentiate(self._step)
            for index in range(len(missing)):
                if index not in posted:  # parameters that this batch did not use
                    post(index)
            return batch

        try:
            await self._replica.compute.perform(self._node, self._replica.batch_source, work)
            await self._node.send(self._node.address, GradientBucket(END, 0))
        finally:
            for hook in hooks:
                hook.remove()


def _buckets(layout: Flat, size: int) -> list[list[TensorSlot]]:
    """Neighbouring parameters together, from the last to the first; each bucket of one part, full at `size` bytes.

    A large one goes with the small ones behind it, not by itself: they are there first, and would hold it up.
    """
    buckets: list[list[TensorSlot]] = []
    room = 0
    for slot in reversed(layout.slots):
        if room <= 0 or buckets[-1][0].part != slot.part:
            buckets.append([])
            room = size
        buckets[-1].insert(0, slot)
        room -= (slot.stop - slot.start) * layout.params.parts[slot.part].element_size()
    return buckets
