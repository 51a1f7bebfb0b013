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
from covey.parallelism.parameter_map import ParameterMap
from covey.parallelism.plan.mesh import Mesh
from covey.parallelism.sharded.gradient_sums import GradientSums
from covey.parallelism.sharded.row_owners import RowOwners, rows_of
from covey.parallelism.sharded.shard_replica import ShardParts
from covey.parallelism.sharded.working_weights import WorkingWeights
from covey.parallelism.trace import undisturbed
from covey.task import Task
from covey.vector import chunk

LOOK = 2  # samples with which a model is looked at


def expert_replica(mesh: Mesh, member: int, given: ReplicaSpec) -> ExpertReplica:
    """What a role at this place of an expert group has of the model; a worker's also computes."""
    task, deal, module, members = given.task, given.deal, given.module, mesh.experts
    layers = checked(module, members)
    whole, every = Outline.of(module), trainable([module])
    feed = Feed(data_of(task), deal, given.who.rank, task.loading, task.batch_size, device(task, given.who.rank))
    tokens = _token_bytes(task, module, feed) if given.trains else 0
    group = ExpertGroup(member, members)
    for number, layer in enumerate(layers.values()):
        layer.divided = DividedExperts(layer, number, group)
        _keep(layer, *chunk(len(layer.experts), members, member))
    inside = {id(weight) for layer in layers.values() for weight in layer.experts.parameters()}
    mine = {name: weight for name, weight in trainable([module]).items() if id(weight) in inside}
    experts = {id(weight) for name, weight in every.items()} - {id(weight) for weight in module.parameters()} | inside
    dense = {name: weight for name, weight in every.items() if id(weight) not in experts}
    owners = RowOwners(dense, members, EXPERT)
    rows = {name: nn.Parameter(part.detach().clone()) for name, part in owners.cut(dense, member).items()}
    layout = Flat(module, instead={**rows, **mine})
    begin = {name: first * rows_of(dense[name])[:1].numel() for name, (first, _) in owners.rows[member].items()}
    source = OwnBatches(task, module, feed) if given.trains else None
    batches = GroupBatches(deal, members)
    samples = BatchSource(samples=batches.samples, steps=batches.steps)
    parts = ShardParts(
        shard=member, shards=members, zero=1, module=module, layout=layout, whole=ParameterMap(layout, whole, begin),
        weights=WorkingWeights(dense, owners, layout, member, [], module),
        sums=GradientSums(dense, owners, layout, member, [tuple(dense)]), batches=batches, source=source,
        rank=given.who.rank, passes=task.accumulate, size=task.batch_size, bulk=max(tokens, owners.nbytes(dense)),
    )  # fmt: skip
    return ExpertReplica(
        parts, group, task.optimizer,
        replace(samples, own=source, begin=source.begin) if source else samples,
        rate=task.rate, budget=given.budget, clip_norm=task.clip_norm, pace=given.pace,
    )  # fmt: skip


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


def _token_bytes(task: Task, module: nn.Module, feed: Feed) -> int:
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


def _keep(layer: Experts, first: int, stop: int) -> None:
    """Have only these experts from now on."""
    for number in range(len(layer.experts)):
        if not first <= number < stop:
            layer.experts[number] = nn.Module()
