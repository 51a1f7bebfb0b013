"""From a whole model to the rows that one role owns: the same division on every role, then the rest is let go."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor, nn

from covey.data.feed import Feed
from covey.data.group_batches import GroupBatches
from covey.model.batches import BatchSource, OwnBatches
from covey.model.build import data_of, device
from covey.model.flat import Flat
from covey.model.replica_spec import ReplicaSpec
from covey.model.slots import Outline, trainable
from covey.parallelism.parameter_map import WHOLE, ParameterMap, Runs, rows_within
from covey.parallelism.plan.mesh import Mesh
from covey.parallelism.sharded.gradient_sums import GradientSums
from covey.parallelism.sharded.layer_parameters import LayerParameters, bundles_of, layers_of
from covey.parallelism.sharded.row_owners import RowOwners, rows_of
from covey.parallelism.sharded.shard_replica import ShardParts, ShardReplica
from covey.parallelism.sharded.working_weights import WorkingWeights
from covey.parallelism.tensor.tensor_roles import LOOK, slices_of, split_plan


def shard_replica(mesh: Mesh, member: int, given: ReplicaSpec) -> ShardReplica:
    """What a role at this place of a shard group has of the model; a worker's also computes."""
    task, deal, module, zero = given.task, given.deal, given.module, mesh.zero or 3
    _, shard, _, tensor = mesh.place(member)
    whole, rank, layers = Outline.of(module), mesh.share(given.who.rank), layers_of(module)
    source = None
    if given.trains:
        feed = Feed(data_of(task), deal, rank, task.loading, task.batch_size, device(task, given.who.rank))
        source = OwnBatches(task, module, feed)
    parameters, slices = trainable([module]), None
    if mesh.tensor is not None:
        slices = slices_of(split_plan(mesh, task, module, deal, given.who.rank), [module], mesh.tensors, tensor)
        parameters = dict(slices.held)
        if source is not None:
            source.parameters = slices.parameters
    owners = RowOwners(parameters, mesh.shards)
    layout = Flat(module, instead=own_rows(owners, parameters, shard))
    together = _together(layers, [name for name in parameters if slices is None or name not in slices.shared])
    summed = [tuple(parameters)] if zero == 1 else _once(together, parameters)
    sums = GradientSums(parameters, owners, layout, shard, summed)
    weights = WorkingWeights(parameters, owners, layout, shard, together if zero == 3 else [], module, sums)
    batches = GroupBatches(deal, mesh.batches)
    samples = BatchSource(samples=batches.samples, steps=batches.steps)
    bulk = slices.largest * -(-task.batch_size // LOOK) if slices else 0
    parts = ShardParts(
        shard=shard, members=[range(one, one + 1) for one in range(mesh.shards)], zero=zero, layout=layout,
        whole=ParameterMap(layout, whole, row_runs(owners, parameters, shard, slices.runs if slices else WHOLE)),
        weights=weights, sums=sums, batches=batches, source=source,
        rank=rank, passes=task.accumulate, size=task.batch_size, bulk=max(bulk, owners.nbytes(parameters)),
        slices=slices,
    )  # fmt: skip
    found = ShardReplica(parts, given, replace(samples, own=source, begin=source.begin) if source else samples)
    weights.let_go(every=source is None)
    return found


def own_rows(owners: RowOwners, parameters: Mapping[str, Tensor], member: int) -> dict[str, nn.Parameter]:
    """A member's rows of parameters, with memory of their own."""
    return {name: nn.Parameter(rows.detach().clone()) for name, rows in owners.cut(parameters, member).items()}


def row_runs(
    owners: RowOwners, parameters: Mapping[str, Tensor], member: int, runs: Mapping[str, Runs] = WHOLE
) -> dict[str, Runs]:
    """Where a member's rows lie in the whole parameters, of which these may be parts that `runs` say."""
    found: dict[str, Runs] = {}
    for name, (first, stop) in owners.rows[member].items():
        row = rows_of(parameters[name])[:1].numel()
        found[name] = rows_within(runs.get(name) or [(0, parameters[name].numel())], first * row, stop * row)
    return found


def _together(layers: list[LayerParameters], names: list[str]) -> list[LayerParameters]:
    """The layers with these parameters only."""
    known = set(names)
    kept = [replace(one, names=tuple(name for name in one.names if name in known)) for one in layers]
    return [one for one in kept if one.names]


def _once(layers: list[LayerParameters], parameters: Mapping[str, nn.Parameter]) -> list[tuple[str, ...]]:
    """Each parameter with the first bundle of layers that has it; those of no layer are the last."""
    seen: set[str] = set()
    found = []
    for numbers in bundles_of(layers, parameters):
        names = dict.fromkeys(name for number in numbers for name in layers[number].names)
        found.append(tuple(name for name in names if name not in seen))
        seen.update(names)
    return [names for names in [*found, tuple(name for name in parameters if name not in seen)] if names]
