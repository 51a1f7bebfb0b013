"""A strategy over a mesh: data parallel between replicas, each of which is a group of workers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product

from covey.errors import PlanError
from covey.model.replica import Replica
from covey.model.replica_spec import ReplicaSpec
from covey.parallelism.axis import EXPERT, SHARD, STAGE, TENSOR, AxisPlace, placed
from covey.parallelism.experts.expert_roles import expert_replica
from covey.parallelism.pipeline.stage_roles import stage_replica
from covey.parallelism.plan.mesh import Mesh
from covey.parallelism.sharded.shard_roles import shard_replica
from covey.parallelism.tensor.tensor_roles import tensor_replica
from covey.strategy import Role, Strategy


def meshed(strategy: Strategy, mesh: Mesh) -> Strategy:
    """The strategy among the replicas of a mesh, once for every place inside a replica."""
    if strategy.terms.chooses or strategy.terms.parts > 1:
        raise PlanError(f"{strategy.name} chooses parts of batches itself, which a cut model cannot: use bsp or ssp")
    if strategy.terms.streams:
        raise PlanError(f"{strategy.text}: a cut model's gradients do not leave while backward runs: use bucket=0")
    sizes = {STAGE: mesh.stages, SHARD: mesh.shards, EXPERT: mesh.experts, TENSOR: mesh.tensors}

    def roles(workers: int, servers: int) -> list[Role]:
        inner = strategy.roles(workers // mesh.members, servers)
        places = [
            tuple(AxisPlace(name, index, size) for (name, size), index in zip(sizes.items(), at, strict=True))
            for at in product(*map(range, sizes.values()))
        ]
        ages = not mesh.schedule.flushes
        return [replace(placed(role, at, ages), part=_part(mesh, at)) for role in inner for at in places]

    kind = "data" if mesh.stages * mesh.tensors == 1 else "model" if mesh.replica == 1 else "model + data"
    return replace(
        strategy, roles=roles, taxonomy=replace(strategy.taxonomy, parallelism=kind),
        terms=replace(strategy.terms, parts=mesh.schedule.microbatches),
        servers=replace(strategy.servers, grouped=None), composition=replace(strategy.composition, mesh=mesh),
    )  # fmt: skip


def _part(mesh: Mesh, at: tuple[AxisPlace, ...]) -> Callable[[ReplicaSpec], Replica]:
    """What makes the replica of a role at this place."""
    stage, shard, expert, tensor = at
    if mesh.expert is not None:
        return partial(expert_replica, mesh, expert.index)
    if mesh.tensor is not None:
        return partial(tensor_replica, mesh, tensor.index)
    return partial(shard_replica, mesh, shard.index) if mesh.sharded else partial(stage_replica, mesh, stage.index)
