"""Which numbers of a kept replica belong to which parameter, buffer and state of the optimizer?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from covey.checkpoint.blocks import NamedNumbers
from covey.model.replica import Replica
from covey.model.slots import TensorSlot, read_description
from covey.vector import Vector

Member = tuple[str, int]
"""What an optimizer steps on: the name of a parameter, and where in it this slice begins."""


def members(replica: Replica) -> list[Member | None]:
    """What each parameter of the optimizer is, in the order of its groups; None for one that is not the model's."""
    layout, found = replica.layout, dict[int, Member]()
    for slot, shards in zip(layout.slots, replica.updates.shards, strict=True):
        for shard, (first, _) in zip(shards, slot.cuts(replica.trained), strict=True):
            found[id(shard)] = slot.name, first
    return [found.get(id(one)) for group in replica.optimizer.param_groups for one in group["params"]]


def named_numbers(kept: Mapping[str, Any]) -> Iterator[NamedNumbers]:
    """All numbers in the state of a replica; of the parameters what it trains."""
    if "layout" not in kept:
        return
    slots = read_description(kept["layout"])
    sizes = dict[Member, int]()
    for slot in slots:
        for first, last in slot.cuts(kept["piece"]):
            sizes[slot.name, first] = last - first
            numbers = _part(kept["params"], slot)[first:last]
            yield NamedNumbers("parameter", slot.name, "", tuple(slot.shape), first, numbers)
    for slot in read_description(kept["floats"]):
        yield NamedNumbers("buffer", slot.name, "", tuple(slot.shape), 0, _part(kept["buffers"], slot))
    for name, buffer in kept["others"].items():
        yield NamedNumbers("counter", name, "", tuple(buffer.shape), 0, buffer.reshape(-1))
    shapes = {slot.name: tuple(slot.shape) for slot in slots}
    once, times = set[tuple[str, str]](), Counter[tuple[Member, str]]()
    for member, state in states(kept, slots):
        for name, value in state.items():
            times[member, name] += 1  # each of several optimizers may keep one
            key = name if times[member, name] == 1 else f"{name} {times[member, name]}"
            if isinstance(value, Tensor) and value.dim() > 0 and value.numel() == sizes[member]:
                yield NamedNumbers("optimizer", member[0], key, shapes[member[0]], member[1], value.reshape(-1))
            elif isinstance(value, Tensor) and (member[0], key) not in once:  # the same for all slices of a parameter
                once.add((member[0], key))
                yield NamedNumbers("optimizer", member[0], key, tuple(value.shape), 0, value.reshape(-1))


def states(kept: Mapping[str, Any], slots: Sequence[TensorSlot]) -> Iterator[tuple[Member, Mapping[str, Any]]]:
    """What the optimizer keeps of each thing that it steps on."""
    order = iter(kept["members"] if "members" in kept else _members_of_old(kept, slots))
    for part in kept["optimizer"].get("parts", [kept["optimizer"]]):
        for group in part["param_groups"] if part else ():
            for number in group["params"]:
                member = next(order, None)
                if member is not None and number in part["state"]:
                    yield (member[0], member[1]), part["state"][number]


def _members_of_old(kept: Mapping[str, Any], slots: Sequence[TensorSlot]) -> Iterator[Member | None]:
    """The same in a checkpoint that does not say it: by the names that torch keeps, if it was given any."""
    firsts = {slot.name: [first for first, _ in slot.cuts(kept["piece"])] for slot in slots}
    for group in kept["optimizer"].get("param_groups", ()):
        names = group.get("param_names", [""] * len(group["params"]))
        for name in names:
            yield (name, firsts[name].pop(0)) if firsts.get(name) else None


def _part(vector: Vector, slot: TensorSlot) -> Tensor:
    part = vector.parts[slot.part]
    if slot.stop > part.numel():
        raise ValueError(f"{slot.name} is said to have more numbers than there are")
    return part[slot.start : slot.stop]
