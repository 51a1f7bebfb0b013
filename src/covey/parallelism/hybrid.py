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
from covey.parallelism.cut_replica import CutReplica
from covey.parallelism.experts.expert_roles import expert_replica
from covey.parallelism.experts.expert_stages import expert_stage_replica
from covey.parallelism.pipeline.stage_roles import stage_replica
from covey.parallelism.plan.mesh import Mesh
from covey.parallelism.sharded.part_rows import rows_of_part
from covey.parallelism.sharded.shard_roles import shard_replica
from covey.parallelism.tensor.tensor_roles import tensor_replica
from covey.strategy import Role, Strategy


def meshed(strategy: Strategy, mesh: Mesh) -> Strategy:
    """The strategy among the replicas of a mesh, once for every place inside a replica."""
    if strategy.terms.chooses or strategy.terms.parts > 1:
        raise PlanError(f"{strategy.name} chooses parts of batches itself, which a cut model cannot: use bsp or ssp")
    if strategy.terms.streams:
        raise PlanError(f"{strategy.text}: a cut model's gradients do not leave while backward runs: use bucket=0")
    if strategy.terms.undivided and mesh.expert is not None:
        raise PlanError(f"{strategy.name} {strategy.terms.undivided}: use asynchronous, or mesh(tensor=...)")
    sizes = {STAGE: mesh.stages, SHARD: mesh.shards, EXPERT: mesh.experts, TENSOR: mesh.tensors}

    def roles(workers: int, servers: int) -> list[Role]:
        inner = strategy.roles(workers // mesh.members, servers)
        places = [
            tuple(AxisPlace(name, index, size) for (name, size), index in zip(sizes.items(), at, strict=True))
            for at in product(*map(range, sizes.values()))
        ]
        ages = not mesh.schedule.flushes
        return [
            replace(placed(role, at, ages), part=partial(_built(mesh), mesh, member))
            for role in inner for member, at in enumerate(places)
        ]  # fmt: skip

    kind = "data" if mesh.stages * mesh.tensors == 1 else "model" if mesh.replica == 1 else "model + data"
    return replace(
        strategy, roles=roles, taxonomy=replace(strategy.taxonomy, parallelism=kind),
        terms=replace(strategy.terms, parts=mesh.schedule.microbatches),
        servers=replace(strategy.servers, grouped=None), composition=replace(strategy.composition, mesh=mesh),
    )  # fmt: skip


def _built(mesh: Mesh) -> Callable[[Mesh, int, ReplicaSpec], Replica]:
    """What makes the replicas of its roles."""
    if not (mesh.cut_in_layers or mesh.expert is not None):
        return shard_replica if mesh.sharded else tensor_replica
    part: Callable[[Mesh, int, ReplicaSpec], CutReplica] = stage_replica if mesh.cut_in_layers else expert_replica
    if mesh.cut_in_layers and mesh.expert is not None:
        part = expert_stage_replica
    return partial(rows_of_part, part) if mesh.shards > 1 else part


def why_part_lost(strategy: Strategy, workers: int) -> str:
    """Why a worker that was lost cannot have its part of a cut model again from another replica, if so."""
    mesh = strategy.composition.mesh
    if mesh is None or strategy.name != "allreduce" or mesh.stages != mesh.members:
        return "a lost worker takes along its part of the model"
    if not mesh.flushes:
        return "its timetable has weights of several steps in one part"
    return "" if workers > mesh.members else "nobody else has a lost worker's part of the model"
