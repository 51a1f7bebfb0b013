"""A checkpoint of one layout as one of another: what members of a replica kept, put together and divided by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from covey.checkpoint import RoleState
from covey.errors import CheckpointError
from covey.model.replica import Replica
from covey.model.slots import TensorSlot, read_description
from covey.parallelism.cut_replica import CutReplica
from covey.parallelism.pipeline.stash import STASH
from covey.vector import Vector, ranges

SAME = "go on with the same mesh"


def relaid(me: RoleState, replicas: Sequence[Sequence[RoleState]], replica: Replica, begin: bool) -> RoleState:
    """What a role with this part of the model goes on from.

    `me` is what the worker with the same batches kept, `replicas` what the members of each replica kept with which the
    role's new group had its batches: these must have the same model. A pipeline that never flushes begins anew.
    """
    wholes = [WholeState.of(states) for states in replicas]
    for state in (state for states in replicas for state in states):
        if kept := [name for name in state.memories if name != STASH] or state.mailbox:
            what = f"remember {kept[0]!r}" if isinstance(kept[0], str) else "have unread messages"
            raise CheckpointError(f"its roles {what}, which belongs to their layout: {SAME}")
        if state.done != me.done:
            raise CheckpointError(f"its workers stand before different steps: {SAME}")
    if any(not whole.same_model(wholes[0]) for whole in wholes[1:]):
        raise CheckpointError(f"its replicas have different models, of which one group cannot be made: {SAME}")
    return RoleState(
        done=me.done, seconds=me.seconds, chance=me.chance, memories={STASH: {}} if begin else {}, mailbox=[],
        replica=_part(wholes, replica),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class WholeState:
    """All that the members of one replica kept, by the names of tensors; parameters are flat."""

    params: Mapping[str, Tensor]
    rows: Mapping[str, torch.Size]  # of a parameter: the shape of a row, of which members have some
    optimizer: Mapping[str, Mapping[str, Any]]
    settings: Mapping[str, Mapping[str, Any]]  # of the optimizer's group of each parameter
    buffers: Mapping[str, Tensor]
    others: Mapping[str, Tensor]
    plain: Mapping[str, Any]

    @staticmethod
    def of(states: Sequence[RoleState]) -> WholeState:
        """Members own runs of numbers of a tensor, in their order, or all of it."""
        params: dict[str, list[Tensor]] = {}
        rows: dict[str, torch.Size] = {}
        kept: dict[str, dict[str, Any]] = {}
        settings: dict[str, Mapping[str, Any]] = {}
        buffers: dict[str, Tensor] = {}
        others: dict[str, Tensor] = {}
        for state in (each.replica for each in states):
            _check_whole(state)
            slots = {slot.name: slot for slot in read_description(state["layout"])}
            for slot in slots.values():
                rows[slot.name] = slot.shape[1:]
                params.setdefault(slot.name, []).append(_numbers(state["params"], slot))
            for slot in read_description(state["floats"]):
                buffers.setdefault(slot.name, _numbers(state["buffers"], slot))
            others |= state["others"]
            for group in state["optimizer"]["param_groups"]:
                rest = {key: value for key, value in group.items() if key not in ("params", "param_names")}
                for number, name in zip(group["params"], group["param_names"], strict=True):
                    settings[name] = rest
                    _add(kept.setdefault(name, {}), state["optimizer"]["state"].get(number, {}), slots[name].shape)
        first = states[0].replica
        return WholeState(
            params={name: torch.cat(parts) for name, parts in params.items()}, rows=rows,
            optimizer={name: {key: _joined(value) for key, value in found.items()} for name, found in kept.items()},
            settings=settings, buffers=buffers, others=others,
            plain={name: first[name] for name in ("seen", "optimizer_class", "heard") if name in first},
        )  # fmt: skip

    def same_model(self, other: WholeState) -> bool:
        return all(torch.equal(numbers, other.params[name]) for name, numbers in self.params.items())


def _part(wholes: Sequence[WholeState], replica: Replica) -> dict[str, Any]:
    """What a replica would have kept that has this part of the model."""
    layout, whole, flat, floats = replica.layout, wholes[0], replica.flat.clone(), replica.buffers.clone()
    _check_model(whole, replica)
    begin = replica.parts.whole.begin if isinstance(replica, CutReplica) else {}
    for slot in layout.slots:
        _numbers(flat, slot).copy_(_cut(whole.params[slot.name], slot, begin))
    for slot in layout.buffer_slots:
        found = [one.buffers[slot.name] for one in wholes if slot.name in one.buffers]
        if len(found) < len(wholes) or any(len(one) != slot.stop - slot.start for one in found):
            raise _another(slot.name)
        _numbers(floats, slot).copy_(torch.stack(found).mean(0))  # as they are scored
    slots, groups, states = {slot.name: slot for slot in layout.slots}, [], dict[int, Any]()
    for group in replica.optimizer.state_dict()["param_groups"]:
        names = group["param_names"]
        groups.append({**group, **(whole.settings[names[0]] if names else {})})
        for number, name in zip(group["params"], names, strict=True):
            kept = whole.optimizer.get(name, {})
            states[number] = {
                key: _cut(value.numbers, slots[name], begin).view(slots[name].shape).clone()
                if isinstance(value, EachNumber) else value for key, value in kept.items()
            }  # fmt: skip
    return {
        "layout": layout.describe(), "floats": layout.describe_floats(), "params": flat, "buffers": floats,
        "others": {name: whole.others[name] for name in layout.others()},
        "optimizer": {"state": {number: state for number, state in states.items() if state}, "param_groups": groups},
        "piece": tuple((0, len(part)) for part in flat.parts), **whole.plain,
    }  # fmt: skip


@dataclass(frozen=True, slots=True)
class EachNumber:
    """What an optimizer keeps for each number of a parameter, flat."""

    numbers: Tensor


def _add(kept: dict[str, Any], state: Mapping[str, Any], shape: torch.Size) -> None:
    """Collect what an optimizer kept of a member's part of a parameter."""
    for key, value in state.items():
        if isinstance(value, Tensor) and value.shape == shape and key != "step":
            kept.setdefault(key, []).append(value.reshape(-1))
        else:
            kept.setdefault(key, value)


def _joined(value: Any) -> Any:
    return EachNumber(torch.cat(value)) if isinstance(value, list) else value


def _check_model(whole: WholeState, replica: Replica) -> None:
    """A part of another model may have the names and fewer numbers."""
    slots = replica.layout.slots
    own = replica.parts.whole.shapes if isinstance(replica, CutReplica) else {slot.name: slot.shape for slot in slots}
    for name, shape in own.items():
        numbers = whole.params.get(name)
        if numbers is None or len(numbers) != shape.numel() or whole.rows[name] != shape[1:]:
            raise _another(name)
    if more := [name for name in whole.params if name not in own]:
        raise CheckpointError(f"the checkpoint is of another model: it has {more[0]}, which this one has not")
    for name, tensor in replica.layout.others().items():
        if name not in whole.others or whole.others[name].shape != tensor.shape:
            raise _another(name)


def _another(name: str) -> CheckpointError:
    return CheckpointError(f"the checkpoint is of another model: it has no {name} of this size")


def _cut(numbers: Tensor, slot: TensorSlot, begin: Mapping[str, int]) -> Tensor:
    first = begin.get(slot.name, 0)
    return numbers[first : first + slot.stop - slot.start]


def _numbers(vector: Vector, slot: TensorSlot) -> Tensor:
    return vector.parts[slot.part][slot.start : slot.stop]


def _check_whole(state: Mapping[str, Any]) -> None:
    if [list(ranges(ends)) for ends in state["piece"]] != [[(0, len(part))] for part in state["params"].parts]:
        raise CheckpointError(f"its servers hold pieces of the model: {SAME}, or keep 1 server for each")
