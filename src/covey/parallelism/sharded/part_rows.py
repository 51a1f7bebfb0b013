"""Rows of a part of a model: a stage, or a member with experts, whose parameters several workers divide once more.

Before a step owners bring their rows to one another, so that each has all that its part computes on. The part then
finds its gradient as it always does, with the other stages or experts, and owners add up the gradients of their rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from covey.data.group_batches import GroupBatches
from covey.model.batches import Batch, BatchSource
from covey.model.flat import Flat
from covey.model.replica_spec import ReplicaSpec
from covey.model.slots import Outline
from covey.parallelism.cut_replica import CutReplica
from covey.parallelism.parameter_map import ParameterMap
from covey.parallelism.plan.mesh import Mesh
from covey.parallelism.sharded.gradient_sums import GradientSums
from covey.parallelism.sharded.row_owners import RowOwners
from covey.parallelism.sharded.shard_replica import ShardParts, ShardReplica
from covey.parallelism.sharded.shard_roles import own_rows, row_runs
from covey.parallelism.sharded.working_weights import WorkingWeights
from covey.program import Node


class PartRowsReplica(ShardReplica):
    """One member's rows of a part of a model, which computes on all of them."""

    def __init__(self, parts: ShardParts, part: CutReplica, given: ReplicaSpec, batch_source: BatchSource) -> None:
        super().__init__(parts, given, batch_source)
        self.part = part

    def changing(self) -> list[object]:
        return [*super().changing(), *self.part.changing()]

    def enter(self, node: Node) -> None:
        self.part.enter(node)

    @property
    def bulk(self) -> int:
        return max(super().bulk, self.part.bulk)

    async def _locally(self, node: Node) -> Batch:
        """The part's own gradient; its buffers are those of this replica meanwhile."""
        self.part.layout.clear()
        self.part.layout.collect_buffers()
        batch = await self.part.computed(node)
        self.parts.weights.check_unchanged()
        self.layout.collect_buffers()
        return batch

    async def square(self, node: Node, mine: float) -> float:
        return await super().square(node, await self.part.square(node, mine))


def rows_of_part(
    build: Callable[[Mesh, int, ReplicaSpec], CutReplica], mesh: Mesh, member: int, given: ReplicaSpec
) -> PartRowsReplica:  # fmt: skip
    """What a role at this place owns of its part of the model."""
    task, outline = given.task, Outline.of(given.module)
    part = build(mesh, member, given)
    _, shard, _, _ = mesh.place(member)
    parameters = dict(part.layout.parameters)
    owners = RowOwners(parameters, mesh.shards)
    layout = Flat(*part.layout.modules, instead=own_rows(owners, parameters, shard))
    batches = GroupBatches(given.deal, mesh.batches)
    source = part.batch_source
    parts = ShardParts(
        shard=shard, members=[range(one * mesh.experts, (one + 1) * mesh.experts) for one in range(mesh.shards)],
        zero=1, layout=layout,
        whole=ParameterMap(layout, outline, row_runs(owners, parameters, shard, part.parts.whole.runs)),
        weights=WorkingWeights(parameters, owners, layout, shard, [], part.module),
        sums=GradientSums(parameters, owners, layout, shard, [tuple(parameters)]), batches=batches, source=None,
        rank=mesh.share(given.who.rank), passes=task.accumulate, size=task.batch_size, bulk=owners.nbytes(parameters),
    )  # fmt: skip
    samples = replace(source, samples=batches.samples, steps=batches.steps)
    return PartRowsReplica(parts, part, given, samples)
