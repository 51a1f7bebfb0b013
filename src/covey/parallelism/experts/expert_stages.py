"""Stages whose experts are divided: a member has a stage's layers, some of its experts, and batches of its own."""

from __future__ import annotations

from dataclasses import replace

from covey.data.feed import Feed
from covey.data.group_batches import GroupBatches
from covey.model.batches import Batch, BatchSource
from covey.model.build import data_of, device
from covey.model.flat import Flat
from covey.model.replica_spec import ReplicaSpec
from covey.model.slots import Outline
from covey.parallelism.axis import EXPERT
from covey.parallelism.experts.expert_roles import checked, token_bytes
from covey.parallelism.experts.token_exchange import ExpertGroup
from covey.parallelism.parameter_map import ParameterMap
from covey.parallelism.pipeline.stage_replica import StageReplica
from covey.parallelism.pipeline.stage_roles import stage_replica
from covey.parallelism.plan.mesh import Mesh
from covey.parallelism.sharded.gradient_sums import GradientSums
from covey.parallelism.sharded.part_rows import PartRowsReplica
from covey.parallelism.sharded.row_owners import RowOwners
from covey.parallelism.sharded.shard_replica import ShardParts
from covey.parallelism.sharded.shard_roles import own_rows, row_runs
from covey.parallelism.sharded.working_weights import WorkingWeights
from covey.program import Node


class ExpertStageReplica(PartRowsReplica):
    """One member's rows of a stage's weights, and its own experts of that stage, which compute everybody's tokens."""

    instead = "members with experts cannot give: use allreduce or bsp"
    mesh = "mesh(stage=..., expert=...)"

    def __init__(
        self, parts: ShardParts, part: StageReplica, group: ExpertGroup, given: ReplicaSpec, batch_source: BatchSource
    ) -> None:  # fmt: skip
        super().__init__(parts, part, given, batch_source)
        self.group = group
        self._apart = [slot for slot in self.layout.slots if slot.name not in parts.weights.parameters]

    def changing(self) -> list[object]:
        return [*super().changing(), self.group]

    @property
    def needed(self) -> bool:
        return True  # others' tokens may have chosen the own experts

    async def _locally(self, node: Node) -> Batch:
        group = self.samples(node)
        with self.group.step(node, group[self.parts.shard] / sum(group)):
            batch = await super()._locally(node)
        self.layout.collect_grads(self._apart)
        return batch


def expert_stage_replica(mesh: Mesh, member: int, given: ReplicaSpec) -> ExpertStageReplica:
    """What a role at this place has of the model; a worker's also computes."""
    task, outline = given.task, Outline.of(given.module)
    _, shard, me, _ = mesh.place(member)
    layers, rank = checked(given.module, mesh.experts), mesh.share(given.who.rank)
    feed = Feed(data_of(task), given.deal, rank, task.loading, task.batch_size, device(task, given.who.rank))
    bulk = token_bytes(task, given.module, feed) if given.trains else 0
    group = ExpertGroup(me, mesh.experts)
    part = stage_replica(mesh, member, given, group)
    held, own = dict(part.layout.parameters), tuple(f"{name}.experts." for name in layers)
    dense = {name: weight for name, weight in held.items() if not name.startswith(own)}
    mine = {name: weight for name, weight in held.items() if name.startswith(own)}
    owners = RowOwners(dense, mesh.experts, EXPERT)
    layout = Flat(*part.layout.modules, instead={**own_rows(owners, dense, me), **mine})
    runs, batches = part.parts.whole.runs, GroupBatches(given.deal, mesh.batches)
    parts = ShardParts(
        shard=me, members=[range(one, one + 1) for one in range(shard * mesh.experts, (shard + 1) * mesh.experts)],
        zero=1, layout=layout,
        whole=ParameterMap(layout, outline, {**runs, **row_runs(owners, dense, me, runs)}),
        weights=WorkingWeights(dense, owners, layout, me, [], part.module),
        sums=GradientSums(dense, owners, layout, me, [tuple(dense)]), batches=batches, source=None,
        rank=rank, passes=task.accumulate, size=task.batch_size, bulk=max(bulk, owners.nbytes(dense)),
    )  # fmt: skip
    samples = replace(part.batch_source, samples=batches.samples, steps=batches.steps)
    return ExpertStageReplica(parts, part, group, given, samples)
