"""From a whole model to one role's part of it: the same cut on every role, then the rest is let go."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from inspect import signature

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from covey.data.feed import Feed
from covey.data.group_batches import GroupBatches
from covey.data.shards import Shards
from covey.errors import PlanError
from covey.model.batches import BatchSource
from covey.model.build import data_of, device
from covey.model.flat import Flat
from covey.model.replica_spec import ReplicaSpec
from covey.model.slots import Outline, names_of, trainable
from covey.nn.experts import experts_in
from covey.nn.routing import RoutingNotes
from covey.parallelism.chain import Chain, chain_of
from covey.parallelism.ends import Entrance, inputs_of, loss_of
from covey.parallelism.experts.expert_roles import divide
from covey.parallelism.experts.served_microbatches import ServedMicrobatches
from covey.parallelism.experts.token_exchange import ExpertGroup
from covey.parallelism.parameter_map import WHOLE, ParameterMap
from covey.parallelism.pipeline.stage_compute import Microbatches, PipelineEnds, StageCompute
from covey.parallelism.pipeline.stage_replica import StageParts, StageReplica
from covey.parallelism.pipeline.stage_worker import PipelinePlace
from covey.parallelism.plan.mesh import BEST, Mesh
from covey.parallelism.plan.schedule import Schedule
from covey.parallelism.stages import Stages, Tie
from covey.parallelism.tensor.split_plan import SplitPlan, SplitPlanner
from covey.parallelism.tensor.split_tensor import SplitTensor, whole_value
from covey.parallelism.tensor.tensor_roles import every_expert, owners_of, samples_for_one, slices_of, some_samples
from covey.task import Task


def stage_replica(
    mesh: Mesh, member: int, given: ReplicaSpec, experts: ExpertGroup | None = None
) -> StageReplica:  # fmt: skip
    """What a role at this place has of the model, with the other members of its stage; a worker's also computes.

    Where members divide its experts, too, their group is given.
    """
    assert mesh.settled, f"{mesh} does not say where the model is cut"
    task, deal, rank = given.task, given.deal, mesh.share(given.who.rank)
    stage, _, _, tensor = mesh.place(member)
    feed = Feed(data_of(task), deal, rank, task.loading, device=device(task, given.who.rank))
    whole = Outline.of(given.module)
    batch = feed.take(torch.arange(micro_samples(task.batch_size, deal.length or deal.samples, mesh.schedule)))
    chain = chain_of(given.module, inputs_of(task, given.module, batch))
    cut = checked(chain.stages(mesh.after, mesh.tied), mesh)
    for layer in experts_in(given.module).values():
        layer.notes = RoutingNotes()  # of what it chose while it was looked at
    mine = list(cut)[stage :: mesh.stages]
    modules = [part.module for part in mine]
    called, ties = names_of(given.module), _ties(cut, mesh.stages)
    borrowed = [called[tie.of(stage)] for tie in ties if tie.borrowed(stage)]
    ends = PipelineEnds(Entrance(task, signature(given.module.forward)), partial(_rebuilt, chain.traced.spec))
    slices = plan = None
    if mesh.tensors > 1:
        plan, owners = _divided(mesh, task, cut, ends, deal, called, given.module)
    if experts is not None:
        for number, layer in enumerate(experts_in(given.module).values()):
            divide(layer, number, experts)
    if plan is not None:
        slices = slices_of(plan, modules, mesh.tensors, tensor, called, borrowed, owners)
    named = {called[name]: weight for module in modules for name, weight in module.named_parameters()}
    layout = Flat(*modules, called=called, without=borrowed, instead=slices.held if slices else None)
    microbatches = _microbatches(mesh, member, task, feed)
    load, group = (slices.load, slices.group) if slices else (1.0, None)
    work = StageCompute(mine, len(cut), microbatches, ends, mesh.recompute, group, experts)
    parts = StageParts(
        place=PipelinePlace(
            stage=stage, stages=mesh.stages, schedule=mesh.schedule,
            loads=tuple(load * one for one in mesh.loads[stage :: mesh.stages]),
        ),
        layout=layout,
        whole=ParameterMap(layout, whole, slices.runs if slices else WHOLE),
        stage_compute=work if given.trains else None,
        weights={name: _local(weight) for name, weight in named.items()},
        ties={called[tie.names[0]]: tie for tie in ties},
        bulk=max(sum(value.bytes for value in part.takes) for part in cut),
        slices=slices,
    )  # fmt: skip
    return StageReplica(parts, given, BatchSource(samples=deal.batch, steps=deal.steps))


def check_split(mesh: Mesh, task: Task, chain: Chain, cut: Stages, deal: Shards) -> None:
    """Refuse stages whose layers cannot be divided among the members of each."""
    ends = PipelineEnds(Entrance(task, signature(chain.model.forward)), partial(_rebuilt, chain.traced.spec))
    _divided(mesh, task, cut, ends, deal, names_of(chain.model), chain.model)


def _microbatches(mesh: Mesh, member: int, task: Task, feed: Feed) -> Microbatches:
    """Of a worker; where members divide experts, all of them compute wherever one has samples."""
    batches, rank = GroupBatches(feed.shards, mesh.batches), feed.rank
    if mesh.expert is None:
        return Microbatches(task, feed, batches, rank)
    first = rank - mesh.place(member)[2]
    return ServedMicrobatches(task, feed, batches, rank, range(first, first + mesh.experts))


def _divided(
    mesh: Mesh, task: Task, cut: Stages, ends: PipelineEnds, deal: Shards, called: Mapping[str, str], model: nn.Module
) -> tuple[SplitPlan, dict[str, int]]:  # fmt: skip
    """How the layers of all stages are divided, and which member of its stage owns each weight that is not."""
    batch = some_samples(task, deal)

    def run() -> None:
        values = ends.entrance(batch)
        for part in cut:
            values = part(values)
            if part.number < len(cut) - 1:  # what goes from one stage to the next is whole
                values = tuple(whole_value(value, "the end of a stage") for value in values)
        loss_of(task, batch, ends.rebuild(values))

    planner = SplitPlanner([part.module for part in cut], mesh.tensors, mesh.split or BEST, called)
    with every_expert(model):
        plan = planner.plan(run, samples_for_one(task, deal))
    owners: dict[str, int] = {}
    for stage in range(mesh.stages):
        here = trainable(part.module for part in list(cut)[stage :: mesh.stages])
        new = {called[name]: weight for name, weight in here.items() if called[name] not in owners}
        found = owners_of(plan, new, mesh.tensors)
        owners |= found
        if not new.keys() & plan.layouts.keys() and len(set(found.values())) < mesh.tensors:
            raise PlanError(
                f"stage {stage} has fewer weights than {mesh.tensors} members could own, as none of its layers is "
                "divided: cut elsewhere with cut=, divide more layers with split=, or use fewer stages"
            )
    return plan, owners


def _local(weight: Tensor) -> nn.Parameter:
    """What a member has of a weight."""
    mine = weight.local if isinstance(weight, SplitTensor) else weight
    assert isinstance(mine, nn.Parameter)
    return mine


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
