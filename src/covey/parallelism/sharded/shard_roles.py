"""From a whole model to the rows that one role owns: the same division on every role, then the rest is let go."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from covey.data.feed import Feed
from covey.data.group_batches import GroupBatches
from covey.model.batches import BatchSource, OwnBatches
from covey.model.build import data_of, device
from covey.model.flat import Flat
from covey.model.replica_spec import ReplicaSpec
from covey.model.slots import Outline, trainable
from covey.parallelism.parameter_map import ParameterMap
from covey.parallelism.plan.mesh import Mesh
from covey.parallelism.sharded.gradient_sums import GradientSums
from covey.parallelism.sharded.layer_parameters import layers_of
from covey.parallelism.sharded.row_owners import RowOwners, rows_of
from covey.parallelism.sharded.shard_replica import ShardParts, ShardReplica
from covey.parallelism.sharded.working_weights import WorkingWeights


def shard_replica(mesh: Mesh, shard: int, given: ReplicaSpec) -> ShardReplica:
    """What a role at this place of a shard group has of the model; a worker's also computes."""
    task, deal, module, zero = given.task, given.deal, given.module, mesh.zero or 3
    whole, parameters = Outline.of(module), trainable([module])
    owners = RowOwners(parameters, mesh.shards)
    owned = {name: _owned(rows) for name, rows in owners.cut(parameters, shard).items()}
    layout = Flat(module, instead=owned)
    begin = {
        name: first * rows_of(parameters[name])[:1].numel() for name, (first, _) in owners.rows[shard].items()
    }  # fmt: skip
    source = None
    if given.trains:
        feed = Feed(data_of(task), deal, given.who.rank, task.loading, task.batch_size, device(task, given.who.rank))
        source = OwnBatches(task, module, feed)
    layers = layers_of(module)
    once: dict[str, int] = {}
    for number, layer in enumerate(layers):
        for name in layer.names:
            once.setdefault(name, number)
    together = [tuple(name for name in layer.names if once[name] == n) for n, layer in enumerate(layers)]
    sums = [tuple(parameters)] if zero == 1 else [names for names in together if names]
    weights = WorkingWeights(parameters, owners, layout, shard, layers, module)
    batches = GroupBatches(deal, mesh.shards)
    samples = BatchSource(samples=batches.samples, steps=batches.steps)
    parts = ShardParts(
        shard=shard, shards=mesh.shards, zero=zero, module=module, layout=layout,
        whole=ParameterMap(layout, whole, begin), weights=weights,
        sums=GradientSums(parameters, owners, layout, shard, sums), batches=batches, source=source,
        rank=given.who.rank, passes=task.accumulate, size=task.batch_size, bulk=owners.nbytes(parameters),
    )  # fmt: skip
    found = ShardReplica(
        parts, task.optimizer,
        replace(samples, own=source, begin=source.begin) if source else samples,
        rate=task.rate, budget=given.budget, clip_norm=task.clip_norm, pace=given.pace,
    )  # fmt: skip
    if zero == 3 or source is None:
        weights.let_go()
    return found


def _owned(rows: torch.Tensor) -> nn.Parameter:
    """Rows with memory of their own."""
    return nn.Parameter(rows.detach().clone())
