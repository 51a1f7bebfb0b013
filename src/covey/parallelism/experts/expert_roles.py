"""From a whole model to the experts that one role has: the same division on every role, then the others are let go."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from covey.data.feed import Feed
from covey.data.group_batches import GroupBatches
from covey.errors import PlanError
from covey.model.batches import BatchSource, OwnBatches
from covey.model.build import data_of, device
from covey.model.flat import Flat
from covey.model.replica_spec import ReplicaSpec
from covey.model.slots import Outline, trainable
from covey.nn.experts import Experts, experts_in
from covey.nn.routing import RoutingNotes
from covey.parallelism.axis import EXPERT
from covey.parallelism.experts.expert_replica import ExpertReplica
from covey.parallelism.experts.token_exchange import DividedExperts, ExpertGroup
from covey.parallelism.parameter_map import WHOLE, ParameterMap
from covey.parallelism.plan.mesh import Mesh
from covey.parallelism.sharded.gradient_sums import GradientSums
from covey.parallelism.sharded.row_owners import RowOwners
from covey.parallelism.sharded.shard_replica import ShardParts
from covey.parallelism.sharded.shard_roles import own_rows, row_runs
from covey.parallelism.sharded.working_weights import WorkingWeights
from covey.parallelism.tensor.tensor_roles import LOOK as TENSOR_LOOK
from covey.parallelism.tensor.tensor_roles import slices_of, split_plan
from covey.parallelism.trace import undisturbed
from covey.task import Task
from covey.vector import chunk

LOOK = 2  # samples with which a model is looked at


def expert_replica(mesh: Mesh, member: int, given: ReplicaSpec) -> ExpertReplica:
    """What a role at this place of an expert group has of the model; a worker's also computes."""
    task, deal, module, members = given.task, given.deal, given.module, mesh.experts
    _, shard, me, tensor = mesh.place(member)
    layers = checked(module, members)
    whole, rank = Outline.of(module), mesh.share(given.who.rank)
    feed = Feed(data_of(task), deal, rank, task.loading, task.batch_size, device(task, given.who.rank))
    bulk = token_bytes(task, module, feed) if given.trains else 0
    plan = split_plan(mesh, task, module, deal, given.who.rank) if mesh.tensor is not None else None
    group = ExpertGroup(me, members)
    for number, layer in enumerate(layers.values()):
        divide(layer, number, group)
    inside = {id(weight) for layer in layers.values() for weight in layer.experts.parameters()}
    apart = {name for name, weight in module.named_parameters() if id(weight) in inside}
    source = OwnBatches(task, module, feed) if given.trains else None
    held, slices = trainable([module]), None
    if plan is not None:
        slices = slices_of(plan, [module], mesh.tensors, tensor)
        held, bulk = dict(slices.held), max(bulk, slices.largest * -(-task.batch_size // TENSOR_LOOK))
        if source is not None:
            source.parameters = slices.parameters
    dense = {name: weight for name, weight in held.items() if name not in apart}
    owners = RowOwners(dense, members, EXPERT)
    mine = {name: weight for name, weight in held.items() if name in apart}
    layout = Flat(module, instead={**own_rows(owners, dense, me), **mine})
    runs = slices.runs if slices else WHOLE
    batches = GroupBatches(deal, mesh.batches)
    samples = BatchSource(samples=batches.samples, steps=batches.steps)
    parts = ShardParts(
        shard=me, members=[range(one, one + 1) for one in range(shard * members, (shard + 1) * members)], zero=1,
        layout=layout, whole=ParameterMap(layout, whole, {**runs, **row_runs(owners, dense, me, runs)}),
        weights=WorkingWeights(dense, owners, layout, me, [], module),
        sums=GradientSums(dense, owners, layout, me, [tuple(dense)]), batches=batches, source=source,
        rank=rank, passes=task.accumulate, size=task.batch_size, bulk=max(bulk, owners.nbytes(dense)), slices=slices,
    )  # fmt: skip
    own = replace(samples, own=source, begin=source.begin) if source else samples
    return ExpertReplica(parts, group, given, own)


def checked(module: nn.Module, members: int) -> dict[str, Experts]:
    """The layers whose experts are divided; refused where a member would have none, or shared ones."""
    layers = experts_in(module)
    if not layers:
        raise PlanError(
            f"mesh(expert={members}) divides the experts of covey.nn.Experts, and {type(module).__name__} has no such "
            f"layer: use mesh(shard={members}), or build the model with covey.nn.Experts"
        )
    uses: dict[int, int] = {}
    for _, parameter in module.named_parameters(remove_duplicate=False):
        uses[id(parameter)] = uses.get(id(parameter), 0) + 1
    for name, layer in layers.items():
        layer.where = f"{name}, before the first step"
        if len(layer.experts) < members:
            raise PlanError(
                f"mesh(expert={members}): {name} has {len(layer.experts)} experts, and every member needs one: use "
                f"mesh(expert={len(layer.experts)}), or fewer"
            )
        if any(isinstance(inner, Experts) for inner in layer.experts.modules()):
            raise PlanError(f"mesh(expert={members}): {name} has experts inside its experts, which cannot be divided")
        if next(layer.experts.buffers(), None) is not None:
            raise PlanError(
                f"mesh(expert={members}): experts of {name} have buffers (as batch-norm has), which would see the "
                "tokens of all members: use layers without buffers, such as nn.LayerNorm"
            )
        if any(uses[id(parameter)] > 1 for parameter in layer.experts.parameters()):
            raise PlanError(f"mesh(expert={members}): experts of {name} share weights, so no member could own them")
    return layers


def token_bytes(task: Task, module: nn.Module, feed: Feed) -> int:
    """What the tokens of one batch for one layer may need, or what experts make of them; a few samples say that."""
    batch = feed.take(feed.shards.indices(feed.rank, 0)[:LOOK])
    largest, layers = [0], experts_in(module).values()
    hooks = [
        layer.register_forward_hook(
            lambda layer, given, made: largest.append(layer.top * max(given[0].nbytes, made.nbytes))
        ) for layer in layers
    ]  # fmt: skip
    with undisturbed(module), torch.no_grad():
        task.forward(module, batch)
    for layer, hook in zip(layers, hooks, strict=True):
        hook.remove()
        layer.notes = RoutingNotes()
    return max(largest) * task.batch_size


def divide(layer: Experts, number: int, group: ExpertGroup) -> None:
    """Have only this member's experts from now on, and compute with the others' owners."""
    layer.divided = DividedExperts(layer, number, group)
    first, stop = chunk(len(layer.experts), group.members, group.me)
    for other in range(len(layer.experts)):
        if not first <= other < stop:
            layer.experts[other] = nn.Module()
