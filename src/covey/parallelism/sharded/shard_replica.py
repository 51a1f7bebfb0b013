"""A member of a shard group as a replica: it owns rows of every parameter, and has batches of its own."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from math import nan

from covey.data.group_batches import GroupBatches
from covey.model.batches import Batch, BatchSource, OwnBatches
from covey.model.compute_shares import in_backward
from covey.model.flat import Flat
from covey.model.replica_spec import ReplicaSpec
from covey.parallelism.cut_replica import CutReplica
from covey.parallelism.parameter_map import ParameterMap
from covey.parallelism.sharded.gradient_sums import GradientSums
from covey.parallelism.sharded.shard_messages import GradientSquare, GroupBuffers
from covey.parallelism.sharded.working_weights import WorkingWeights
from covey.parallelism.tensor.slices import TensorSlices
from covey.program import Node
from covey.vector import mean_


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardParts:
    """What one member has, and how it takes part."""

    shard: int
    members: Sequence[range]  # of the group: which of the replica's shares of the data each computes on
    zero: int
    layout: Flat  # of the rows that it owns
    whole: ParameterMap
    weights: WorkingWeights
    sums: GradientSums
    batches: GroupBatches
    source: OwnBatches | None  # of a worker that computes itself
    rank: int  # as the data is dealt out
    passes: int  # the most backwards of a step
    size: int  # samples of each
    bulk: int  # bytes of the largest thing that members send
    slices: TensorSlices | None = None  # where layers are divided, too


class ShardReplica(CutReplica):
    """One member's rows of a model; strategies do with its part of a gradient what they do with a whole one."""

    parts: ShardParts
    instead = "shards cannot give: use allreduce or bsp"
    mesh = "mesh(shard=...)"
    owns = "rows"

    def __init__(self, parts: ShardParts, given: ReplicaSpec, batch_source: BatchSource) -> None:
        super().__init__(parts, given, batch_source)
        self._node: Node | None = None
        self._handed = 0
        self._counts = True  # whether the batch under way does
        if parts.source is not None and parts.zero > 1:
            self._follow_backward(parts.source)

    def _follow_backward(self, source: OwnBatches) -> None:
        """Hand gradients out while backward runs."""
        for name, parameter in self.parts.weights.parameters.items():
            parameter.register_post_accumulate_grad_hook(lambda _, name=name: self._has_gradient(source, name))

    def changing(self) -> list[object]:
        parts = self.parts
        return [*super().changing(), parts.weights, parts.sums, *([parts.slices.group] if parts.slices else [])]

    @property
    def needed(self) -> bool:
        """Whether the others need this member while they compute."""
        return self.parts.zero == 3

    # -- gradients ------------------------------------------------------------------------------------------------

    async def computed(self, node: Node) -> Batch:
        """Leave this member's rows of the mean gradient over the batches of its group in `grad`."""
        self.compute.working.refresh()
        parts, step, group = self.parts, node.step, self.samples(node)
        mine, everybody = group[parts.shard], sum(group)
        passes = [1 if parts.zero == 1 else -(-samples // parts.size) for samples in group]
        parts.sums.begin(step, group, passes, parts.passes)
        await parts.weights.bring_early(node)
        batch = Batch(nan, 0)
        if mine or (everybody and self.needed):  # who has no samples still has what the others need
            batch = await self._locally(node)
        await self._hand_out_rest(node)
        await parts.sums.finish(node)
        await self._mean_buffers(node, group)
        return Batch(batch.loss if mine else nan, everybody, batch.seen if mine else 0)

    def samples(self, node: Node) -> list[int]:
        """Of the step's batch, that each member of the group has."""
        batches = self.parts.batches
        first = node.rank * batches.members
        return [sum(batches.batch(first + one, node.step) for one in shares) for shares in self.parts.members]

    async def _locally(self, node: Node) -> Batch:
        """The gradient of this member's own batch."""
        parts, load = self.parts, 1.0
        if parts.slices:
            await parts.slices.bring_shared(node, self.buffers)
            parts.slices.group.begin(node)
            load = parts.slices.load
        talks = parts.zero > 1 or self.needed or parts.slices is not None
        batch: Batch = await node.compute(partial(self._work, node), load, talks=talks)
        return batch

    def _work(self, node: Node) -> Batch:
        """(On the compute thread) What members that divide layers do together ends with it."""
        try:
            return self._differentiate(node)
        finally:
            if self.parts.slices:
                self.parts.slices.group.forget()

    def _differentiate(self, node: Node) -> Batch:
        """(On the compute thread) Forward and backward on the own batch.

        Where layers are brought together one by one, everybody computes as often as whoever has most to compute: the
        first batch of the pass again, which does not count.
        """
        parts, sums = self.parts, self.parts.sums
        own = parts.batches.own(parts.rank, node.step)
        self._node, self._handed, self._counts = node, 0, own is not None
        batch = Batch(nan, 0)
        with parts.weights.one_by_one(node) if parts.zero == 3 else nullcontext():
            if own is not None:
                batch = self.compute.run(partial(self._batch, node.step, own))
            self._counts = False
            if parts.zero == 3 and (more := max(sums.passes) - sums.passes[parts.shard]):
                assert parts.source is not None
                first = node.step // parts.batches.steps(node.rank) * parts.batches.deal.steps(parts.rank)
                parts.source.without_weight(first, more)
        parts.weights.check_unchanged()
        return batch

    def _batch(self, step: int, own: int) -> Batch:
        assert self.parts.source is not None, "this role has no data"
        batch = self.parts.source(own)
        self.updates.note(step)
        return batch

    def _has_gradient(self, source: OwnBatches, name: str) -> None:
        """(In backward) A parameter's gradient is complete for this pass."""
        source.found = True
        parts, node = self.parts, self._node
        assert node is not None
        if parts.zero == 3:
            parts.weights.drop_after_backward(name)
        if not self._counts:
            parts.weights.parameters[name].grad = None  # of a batch that does not count
            return
        layer = parts.sums.ready(source.turn, name)
        if layer is not None:
            self._handed += 1
            of = len(parts.sums.layers) * parts.sums.passes[parts.shard]
            node.consult(self._hand_out(node, source.turn, layer), in_backward(min(self._handed, of), of))

    async def _hand_out(self, node: Node, turn: int, layer: int) -> None:
        await self.parts.weights.exchange.make_room(node)
        await self.parts.sums.hand_out(node, turn, layer)

    async def _hand_out_rest(self, node: Node) -> None:
        """What no backward has handed out: everything at once, or layers that this batch did not use."""
        for turn, layer in self.parts.sums.missing():
            await self.parts.sums.hand_out(node, turn, layer)

    async def _mean_buffers(self, node: Node, group: list[int]) -> None:
        """Batch statistics are those of the group: the mean of its members', one like the other."""
        if not self.buffers.parts:
            return
        parts = self.parts
        if group[parts.shard]:
            for member in self._others():
                await node.send(parts.sums.owners.peer(member), GroupBuffers(node.step, self.buffers))
        found = {parts.shard: self.buffers.clone()}
        for member in self._others():
            if group[member]:
                came = await node.receive(GroupBuffers, sender=parts.sums.owners.peer(member), step=node.step)
                found[member] = came.buffers
        there = [found[member] for member in range(len(group)) if group[member]]
        mean_(self.buffers, there, [1.0] * len(there))

    async def announce(self, node: Node) -> None:
        """Every member tells of its own samples; the step is that of all."""
        self.progress.begin(self.batch.samples * node.workers)
        if self.batch.seen:
            await super().announce(node)

    async def square(self, node: Node, mine: float) -> float:
        """Along the group, of what those who divide layers have together."""
        parts = self.parts
        mine = await parts.slices.square(node, mine) if parts.slices else mine
        for member in self._others():
            await node.send(parts.sums.owners.peer(member), GradientSquare(node.step, mine))
        squares = {parts.shard: mine}
        for member in self._others():
            sender = parts.sums.owners.peer(member)
            squares[member] = (await node.receive(GradientSquare, sender=sender, step=node.step)).square
        return sum(squares[member] for member in sorted(squares))

    def _others(self) -> list[int]:
        return [member for member in range(len(self.parts.members)) if member != self.parts.shard]
