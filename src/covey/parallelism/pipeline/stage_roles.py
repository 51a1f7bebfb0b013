"""From a whole model to one role's part of it: the same cut on every role, then the rest is let go."""

from __future__ import annotations

from functools import partial
from inspect import signature

import torch
from torch import nn
from torch.utils import _pytree as pytree

from covey.data.feed import Feed
from covey.errors import PlanError
from covey.model.batches import BatchSource
from covey.model.build import data_of, device
from covey.model.flat import Flat
from covey.model.replica_spec import ReplicaSpec
from covey.model.slots import Outline, names_of
from covey.parallelism.chain import chain_of
from covey.parallelism.ends import Entrance, inputs_of
from covey.parallelism.parameter_map import ParameterMap
from covey.parallelism.pipeline.stage_compute import Microbatches, PipelineEnds, StageCompute
from covey.parallelism.pipeline.stage_replica import StageParts, StageReplica
from covey.parallelism.pipeline.stage_worker import PipelinePlace
from covey.parallelism.plan.mesh import Mesh
from covey.parallelism.plan.schedule import Schedule
from covey.parallelism.stages import Stages, Tie


def stage_replica(mesh: Mesh, stage: int, given: ReplicaSpec) -> StageReplica:
    """What a role of this stage has of the model; a worker's also computes."""
    assert mesh.settled, f"{mesh} does not say where the model is cut"
    task, deal, rank = given.task, given.deal, given.who.rank // mesh.stages
    feed = Feed(data_of(task), deal, rank, task.loading, device=device(task, given.who.rank))
    whole = Outline.of(given.module)
    batch = feed.take(torch.arange(micro_samples(task.batch_size, deal.samples, mesh.schedule)))
    chain = chain_of(given.module, inputs_of(task, given.module, batch))
    cut = checked(chain.stages(mesh.after, mesh.tied), mesh)
    mine = list(cut)[stage :: mesh.stages]
    called, ties = names_of(given.module), _ties(cut, mesh.stages)
    named = {called[name]: weight for part in mine for name, weight in part.module.named_parameters()}
    borrowed = {called[tie.of(stage)]: named[called[tie.of(stage)]] for tie in ties if tie.borrowed(stage)}
    layout = Flat(*(part.module for part in mine), called=called, without=borrowed)
    ends = PipelineEnds(Entrance(task, signature(given.module.forward)), partial(_rebuilt, chain.traced.spec))
    microbatches = Microbatches(task, feed, deal, rank)
    parts = StageParts(
        place=PipelinePlace(
            stage=stage, stages=mesh.stages, schedule=mesh.schedule, loads=tuple(mesh.loads[stage :: mesh.stages])
        ),
        layout=layout,
        whole=ParameterMap(layout, whole),
        stage_compute=StageCompute(mine, len(cut), microbatches, ends, mesh.recompute) if given.trains else None,
        ties={called[tie.names[0]]: tie for tie in ties},
        borrowed=borrowed,
        bulk=max(sum(value.bytes for value in part.takes) for part in cut),
    )  # fmt: skip
    return StageReplica(
        parts, task.optimizer, BatchSource(samples=deal.batch, steps=deal.steps),
        rate=task.rate, budget=given.budget, clip_norm=task.clip_norm, pace=given.pace,
    )  # fmt: skip


def checked(cut: Stages, mesh: Mesh) -> Stages:
    """Refuse a cut whose stages could not be trained."""
    ties = _ties(cut, mesh.stages)
    for number in range(mesh.stages):
        mine = list(cut)[number :: mesh.stages]
        trained = {name for part in mine for name, p in part.module.named_parameters() if p.requires_grad}
        if not trained - {tie.of(number) for tie in ties if tie.borrowed(number)}:
            layers = ", ".join(f"{part.layers[0]} to {part.layers[-1]}" for part in mine)
            what = "nothing to train but weights of another stage" if trained else "nothing to train"
            raise PlanError(f"stage {number} (layers {layers}) has {what}: cut elsewhere, or into fewer stages")
        if any(isinstance(layer, nn.SyncBatchNorm) for part in mine for layer in part.module.modules()):
            raise PlanError(
                "nn.SyncBatchNorm speaks with other workers in its forward, which a stage cannot: use nn.BatchNorm"
            )
    return cut


def micro_samples(batch: int, samples: int, schedule: Schedule) -> int:
    """In a micro-batch; one is too few to see what depends on their number."""
    return min(samples, max(2, -(-batch // schedule.microbatches) if schedule.divides else batch))


def _ties(cut: Stages, stages: int) -> list[Tie]:
    """Weights that several workers have: what each calls them. On one worker they are one, whatever its parts are."""
    found = []
    for tie in cut.ties:
        owners = {number % stages: name for number, name in reversed(list(zip(tie.stages, tie.names, strict=True)))}
        if len(owners) > 1:
            found.append(Tie(tuple(owners[owner] for owner in sorted(owners)), tuple(sorted(owners))))
    return found


def _rebuilt(spec: pytree.TreeSpec, given: list[torch.Tensor]) -> object:
    return pytree.tree_unflatten(list(given), spec)
