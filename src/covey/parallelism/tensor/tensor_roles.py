"""From a whole model to the slices that one role has of it: the same plan on every role, then the rest is let go."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from covey.data.feed import Feed
from covey.data.shards import Shards
from covey.model.batches import BatchSource, OwnBatches
from covey.model.build import data_of, device
from covey.model.flat import Flat
from covey.model.replica_spec import ReplicaSpec
from covey.model.slots import Outline, trainable
from covey.parallelism.parameter_map import ParameterMap
from covey.parallelism.plan.mesh import BEST, Mesh
from covey.parallelism.tensor.group import MemberGroup
from covey.parallelism.tensor.layout import SplitLayout, ranges_of
from covey.parallelism.tensor.rules import RULES
from covey.parallelism.tensor.split_plan import ParameterPlaces, SplitPlan, SplitPlanner
from covey.parallelism.tensor.split_tensor import SplitTensor
from covey.parallelism.tensor.tensor_replica import TensorParts, TensorReplica
from covey.task import Task

LOOK = 4  # samples with which a model is looked at


def split_plan(mesh: Mesh, task: Task, module: nn.Module, deal: Shards, rank: int = 0) -> SplitPlan:
    """How the task's model is divided among the members of a mesh's tensor groups."""
    feed = Feed(data_of(task), deal, 0, task.loading, device=device(task, rank))
    batch = feed.take(deal.indices(0, 0)[:LOOK])
    few = min(LOOK, deal.batch(0, 0))
    return SplitPlanner(module, mesh.tensors, mesh.split or BEST).plan(
        lambda: task.forward(module, batch), -(-task.batch_size // few)
    )


def tensor_replica(mesh: Mesh, me: int, given: ReplicaSpec) -> TensorReplica:
    """What a role at this place of a tensor group has of the model; a worker's also computes."""
    task, deal, module, members = given.task, given.deal, given.module, mesh.tensors
    rank = given.who.rank // members
    plan = split_plan(mesh, task, module, deal, given.who.rank)
    outline, whole = Outline.of(module), trainable([module])
    group = MemberGroup(members, RULES, me, plan.turns)
    places, owners = ParameterPlaces(module), _owners(plan, whole, members)
    source = None
    if given.trains:
        feed = Feed(data_of(task), deal, rank, task.loading, task.batch_size, device(task, given.who.rank))
        source = OwnBatches(task, module, feed)
    numbers = {name: parameter.numel() for name, parameter in module.named_parameters()}
    locals_ = _slices(plan, dict(module.named_parameters()), group, places)
    owned = {
        name: locals_.get(name, parameter) for name, parameter in whole.items()
        if name in locals_ or owners[name] == me
    }  # fmt: skip
    if source is not None:
        source.parameters = [locals_.get(name, parameter) for name, parameter in whole.items()]
    layout = Flat(module, instead=owned)
    runs = {name: _runs(whole[name], plan.layouts[name], members, me) for name in owned if name in plan.layouts}
    shared = {name: parameter for name, parameter in whole.items() if name not in plan.layouts}
    parts = TensorParts(
        group=group, module=module, layout=layout, whole=ParameterMap(layout, outline, runs=runs), shared=shared,
        owners=owners, load=_load(plan, numbers, members), bulk=plan.largest * -(-task.batch_size // LOOK),
    )  # fmt: skip
    batches = BatchSource(samples=deal.batch, steps=deal.steps)
    return TensorReplica(
        parts, task.optimizer,
        replace(batches, own=source, begin=source.begin) if source else batches,
        rate=task.rate, budget=given.budget, clip_norm=task.clip_norm, pace=given.pace,
    )  # fmt: skip


def _owners(plan: SplitPlan, whole: Mapping[str, nn.Parameter], members: int) -> dict[str, int]:
    """Who owns each parameter that everybody has: largest first, always who owns least."""
    held, found = [0] * members, dict[str, int]()
    shared = [name for name in whole if name not in plan.layouts]
    for name in sorted(shared, key=lambda one: -whole[one].numel()):
        found[name] = held.index(min(held))
        held[found[name]] += whole[name].numel()
    return found


def _slices(
    plan: SplitPlan, parameters: Mapping[str, nn.Parameter], group: MemberGroup, places: ParameterPlaces
) -> dict[str, nn.Parameter]:
    """This member's part of each divided parameter, with which the model computes from now on."""
    found = {}
    for name, layout in plan.layouts.items():
        parameter = parameters[name]
        mine = group.cut(parameter.detach(), layout).clone(memory_format=torch.contiguous_format)
        found[name] = nn.Parameter(mine, requires_grad=parameter.requires_grad)
        places.install(name, SplitTensor(found[name], layout, group))
    return found


def _runs(parameter: Tensor, layout: SplitLayout, members: int, me: int) -> list[tuple[int, int]]:
    """Where a member's part lies in a parameter that is laid out flat: runs of numbers, in the order of the part."""
    outer = parameter.shape[: layout.dim].numel()
    inner = parameter.shape[layout.dim + 1 :].numel()
    step = parameter.shape[layout.dim] * inner
    ranges = ranges_of(layout.blocks, members, me)
    return [(at * step + a * inner, (b - a) * inner) for at in range(outer) for a, b in ranges if a < b]


def _load(plan: SplitPlan, numbers: Mapping[str, int], members: int) -> float:
    """What of a batch's compute a member does, as far as weights tell."""
    divided = sum(size for name, size in numbers.items() if name in plan.layouts)
    return 1 - divided / sum(numbers.values()) * (1 - 1 / members)
