"""From a whole model to the slices that one role has of it: the same plan on every role, then the rest is let go."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from covey.data.feed import Feed
from covey.data.shards import Shards
from covey.model.batches import BatchSource, OwnBatches
from covey.model.build import data_of, device
from covey.model.flat import Flat
from covey.model.replica_spec import ReplicaSpec
from covey.model.slots import Outline
from covey.nn.experts import Experts, experts_in
from covey.nn.routing import RoutingNotes
from covey.parallelism.parameter_map import ParameterMap
from covey.parallelism.plan.mesh import BEST, Mesh
from covey.parallelism.tensor.group import MemberGroup
from covey.parallelism.tensor.layout import SplitLayout, ranges_of
from covey.parallelism.tensor.rules import RULES
from covey.parallelism.tensor.slices import TensorSlices
from covey.parallelism.tensor.split_plan import ParameterPlaces, SplitPlan, SplitPlanner
from covey.parallelism.tensor.split_tensor import SplitTensor, whole_value
from covey.parallelism.tensor.tensor_replica import TensorParts, TensorReplica
from covey.task import Task

LOOK = 4  # samples with which a model is looked at


def split_plan(mesh: Mesh, task: Task, module: nn.Module, deal: Shards, rank: int = 0) -> SplitPlan:
    """How the task's model is divided among the members of a mesh's tensor groups."""
    batch = some_samples(task, deal, rank)
    with every_expert(module):
        return SplitPlanner([module], mesh.tensors, mesh.split or BEST).plan(
            lambda: task.forward(module, batch), samples_for_one(task, deal)
        )


def some_samples(task: Task, deal: Shards, rank: int = 0) -> Any:
    """A few, with which a model is looked at."""
    feed = Feed(data_of(task), deal, 0, task.loading, device=device(task, rank))
    return feed.take(deal.indices(0, 0)[:LOOK])


def samples_for_one(task: Task, deal: Shards) -> int:
    """How many of a batch stand behind one of those."""
    return -(-task.batch_size // min(LOOK, deal.batch(0, 0)))


@contextmanager
def every_expert(module: nn.Module) -> Iterator[None]:
    """Meanwhile all experts compute, whichever of them a few samples choose, and on whole tokens."""
    layers = experts_in(module).values()
    for layer in layers:
        layer.divided = _each_on_whole(layer)
    try:
        yield
    finally:
        for layer in layers:
            layer.divided, layer.notes = None, RoutingNotes()


def _each_on_whole(layer: Experts) -> Callable[[Tensor, Sequence[int]], Tensor]:
    def computed(rows: Tensor, counts: Sequence[int]) -> Tensor:
        parts = whole_value(rows, "Experts").split(list(counts))
        made = []
        for expert, part in zip(layer.experts, parts, strict=True):
            given = part if len(part) else part.new_zeros(1, part.shape[1])
            made.append(whole_value(expert(given), "Experts")[: len(part)])
        return torch.cat(made)

    return computed


def tensor_replica(mesh: Mesh, member: int, given: ReplicaSpec) -> TensorReplica:
    """What a role at this place of a tensor group has of the model; a worker's also computes."""
    task, deal, module = given.task, given.deal, given.module
    *_, me = mesh.place(member)
    outline = Outline.of(module)
    source = None
    if given.trains:
        rank = mesh.share(given.who.rank)
        feed = Feed(data_of(task), deal, rank, task.loading, task.batch_size, device(task, given.who.rank))
        source = OwnBatches(task, module, feed)
    slices = slices_of(split_plan(mesh, task, module, deal, given.who.rank), [module], mesh.tensors, me)
    if source is not None:
        source.parameters = slices.parameters
    layout = Flat(module, instead=slices.held)
    parts = TensorParts(
        slices=slices, layout=layout, whole=ParameterMap(layout, outline, slices.runs),
        bulk=slices.largest * -(-task.batch_size // LOOK),
    )  # fmt: skip
    batches = BatchSource(samples=deal.batch, steps=deal.steps)
    return TensorReplica(parts, given, replace(batches, own=source, begin=source.begin) if source else batches)


def slices_of(
    plan: SplitPlan, modules: Sequence[nn.Module], members: int, me: int,
    called: Mapping[str, str] | None = None, borrowed: Collection[str] = (), owners: Mapping[str, int] | None = None,
) -> TensorSlices:  # fmt: skip
    """What a member has of these modules, which compute on that from now on.

    A parameter may be `called` by another name in the whole model; `borrowed` ones belong to another stage.
    """
    group, places = MemberGroup(members, RULES, me, plan.turns), ParameterPlaces(*modules, called=called)
    every = places.parameters
    numbers = {name: parameter.numel() for name, parameter in every.items()}
    trained = {name: parameter for name, parameter in every.items() if parameter.requires_grad}
    owners = owners_of(plan, trained, members) if owners is None else owners
    slices = dict[str, nn.Parameter]()
    for name, parameter in every.items():
        if (layout := plan.layouts.get(name)) is not None:
            mine = group.cut(parameter.detach(), layout).clone(memory_format=torch.contiguous_format)
            slices[name] = nn.Parameter(mine, requires_grad=parameter.requires_grad)
            places.install(name, SplitTensor(slices[name], layout, group))
    runs = {name: _runs(every[name], plan.layouts[name], members, me) for name in slices}
    shared = {name: one for name, one in trained.items() if name not in slices and name not in borrowed}
    held = {
        name: slices.get(name, one) for name, one in trained.items()
        if name not in borrowed and (name in slices or owners[name] == me)
    }  # fmt: skip
    for name, one in shared.items():
        if name not in held:  # the owner's numbers come row by row, into memory that may have been that of a transpose
            one.data = one.data.contiguous()
    divided = sum(size for name, size in numbers.items() if name in slices)
    return TensorSlices(
        group=group, held=held, runs=runs, shared=shared, owners=owners, largest=plan.largest,
        load=1 - divided / (sum(numbers.values()) or 1) * (1 - 1 / members),
    )  # fmt: skip


def owners_of(plan: SplitPlan, trained: Mapping[str, Tensor], members: int) -> dict[str, int]:
    """Who owns each parameter that everybody has: largest first, always who owns least."""
    held, found = [0] * members, dict[str, int]()
    shared = [name for name in trained if name not in plan.layouts]
    for name in sorted(shared, key=lambda one: -trained[one].numel()):
        found[name] = held.index(min(held))
        held[found[name]] += trained[name].numel()
    return found


def _runs(parameter: Tensor, layout: SplitLayout, members: int, me: int) -> list[tuple[int, int]]:
    """Where a member's part lies in a parameter that is laid out flat: runs of numbers, in the order of the part."""
    outer = parameter.shape[: layout.dim].numel()
    inner = parameter.shape[layout.dim + 1 :].numel()
    step = parameter.shape[layout.dim] * inner
    ranges = ranges_of(layout.blocks, members, me)
    return [(at * step + a * inner, (b - a) * inner) for at in range(outer) for a, b in ranges if a < b]
