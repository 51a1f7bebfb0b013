"""A strategy over a mesh: data parallel between replicas, each of which is a pipeline of workers."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from covey.errors import PlanError
from covey.parallelism.pipeline.axis import placed
from covey.parallelism.pipeline.stage_roles import stage_replica
from covey.parallelism.plan.mesh import Mesh
from covey.strategy import Role, Strategy


def meshed(strategy: Strategy, mesh: Mesh) -> Strategy:
    """The strategy among the replicas of a mesh, once for every stage."""
    if strategy.terms.chooses or strategy.terms.parts > 1:
        raise PlanError(f"{strategy.name} chooses parts of batches itself, which a cut model cannot: use bsp or ssp")
    stages = mesh.stages

    def roles(workers: int, servers: int) -> list[Role]:
        inner = strategy.roles(workers // stages, servers)
        return [
            replace(placed(role, stage, stages, not mesh.schedule.flushes), part=partial(stage_replica, mesh, stage))
            for role in inner
            for stage in range(stages)
        ]

    kind = "data" if stages == 1 else "model" if mesh.replica == 1 else "model + data"
    return replace(
        strategy, roles=roles, taxonomy=replace(strategy.taxonomy, parallelism=kind),
        terms=replace(strategy.terms, parts=mesh.schedule.microbatches),
        servers=replace(strategy.servers, grouped=None), composition=replace(strategy.composition, mesh=mesh),
    )  # fmt: skip
