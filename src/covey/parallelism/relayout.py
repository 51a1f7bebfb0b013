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
from covey.parallelism.parameter_map import Runs
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
    shapes: Mapping[str, torch.Size]  # of the whole parameters
    optimizer: Mapping[str, Mapping[str, Any]]
    settings: Mapping[str, Mapping[str, Any]]  # of the optimizer's group of each parameter
    buffers: Mapping[str, Tensor]
    others: Mapping[str, Tensor]
    plain: Mapping[str, Any]

    @staticmethod
    def of(states: Sequence[RoleState]) -> WholeState:
        """Put together: each says which numbers of a parameter it has; who does not has the next ones, or all."""
        params: dict[str, ScatteredNumbers] = {}
        shapes: dict[str, torch.Size] = {}
        kept: dict[str, dict[str, Any]] = {}
        settings: dict[str, Mapping[str, Any]] = {}
        buffers: dict[str, Tensor] = {}
        others: dict[str, Tensor] = {}
        for state in (each.replica for each in states):
            _check_whole(state)
            slots = {slot.name: slot for slot in read_description(state["layout"])}
            runs = {name: _checked_runs(state, slot) for name, slot in slots.items()}
            for slot in slots.values():
                numbers = _numbers(state["params"], slot)
                params.setdefault(slot.name, ScatteredNumbers()).add(numbers, runs[slot.name])
                shapes.setdefault(slot.name, slot.shape)
                if (whole := state.get("shapes", {}).get(slot.name)) is not None:
                    shapes[slot.name] = torch.Size(int(size) for size in whole)
            for slot in read_description(state["floats"]):
                buffers.setdefault(slot.name, _numbers(state["buffers"], slot))
            others |= state["others"]
            for group in state["optimizer"]["param_groups"]:
                rest = {key: value for key, value in group.items() if key not in ("params", "param_names")}
                for number, name in zip(group["params"], group["param_names"], strict=True):
                    settings[name] = rest
                    own = state["optimizer"]["state"].get(number, {})
                    _add(kept.setdefault(name, {}), own, slots[name].shape, runs[name])
        first = states[0].replica
        whole_params = {name: scattered.joined() for name, scattered in params.items()}
        return WholeState(
            params=whole_params, shapes={name: _whole(shapes[name], whole_params[name]) for name in shapes},
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
    runs = replica.parts.whole.runs if isinstance(replica, CutReplica) else {}
    for slot in layout.slots:
        _numbers(flat, slot).copy_(_cut(whole.params[slot.name], runs.get(slot.name)))
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
                key: _cut(value.numbers, runs.get(name)).view(slots[name].shape).clone()
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


class ScatteredNumbers:
    """The numbers of a tensor, as members have some of them each."""

    def __init__(self) -> None:
        self.parts: list[tuple[Tensor, Runs | None]] = []

    def add(self, numbers: Tensor, runs: Runs | None) -> None:
        """Those that runs say, or the next ones."""
        self.parts.append((numbers.reshape(-1), runs))

    def joined(self) -> Tensor:
        """All, each at its place; refused where one is nobody's, or somebody's twice."""
        if all(runs is None for _, runs in self.parts):
            return torch.cat([numbers for numbers, _ in self.parts])
        total, at = sum(len(numbers) for numbers, _ in self.parts), 0
        whole, there = self.parts[0][0].new_empty(total), torch.zeros(total, dtype=torch.bool)
        for numbers, runs in self.parts:
            for start, size in [(0, len(numbers))] if runs is None else runs:
                if start < 0 or start + size > total:
                    raise CheckpointError("its members' parts of a tensor do not fit together")
            index = _index(runs or [(at, len(numbers))])
            whole[index], there[index] = numbers, True
            at += len(numbers)
        if not bool(there.all()):
            raise CheckpointError("its members' parts of a tensor do not fit together")
        return whole


def _index(runs: Runs) -> Tensor:
    """The numbers that runs say, one by one."""
    starts, sizes = (torch.tensor(each) for each in zip(*runs, strict=True))
    before = sizes.cumsum(0) - sizes
    return torch.repeat_interleave(starts - before, sizes) + torch.arange(int(sizes.sum()))


def _checked_runs(state: Mapping[str, Any], slot: TensorSlot) -> Runs | None:
    """Which numbers of a parameter a member has; None where it does not say."""
    runs = state.get("runs", {}).get(slot.name)
    if runs is None:
        return None
    if runs.dtype != torch.int64 or runs.dim() != 2 or runs.shape[1:] != (2,) or int(runs[:, 1].min()) < 1:
        raise CheckpointError(f"it does not say which numbers of {slot.name} a member has")
    if int(runs[:, 1].sum()) != slot.stop - slot.start:
        raise CheckpointError(f"a member has other numbers of {slot.name} than it says")
    return [(int(start), int(size)) for start, size in runs.tolist()]


def _whole(shape: torch.Size, numbers: Tensor) -> torch.Size:
    """A shape of some rows as that of all of them."""
    if shape.numel() == len(numbers):
        return shape
    return torch.Size([len(numbers) // max(shape[1:].numel(), 1), *shape[1:]])


def _add(kept: dict[str, Any], state: Mapping[str, Any], shape: torch.Size, runs: Runs | None) -> None:
    """Collect what an optimizer kept of a member's part of a parameter."""
    for key, value in state.items():
        if isinstance(value, Tensor) and value.shape == shape and key != "step":
            kept.setdefault(key, ScatteredNumbers()).add(value, runs)
        else:
            kept.setdefault(key, value)


def _joined(value: Any) -> Any:
    return EachNumber(value.joined()) if isinstance(value, ScatteredNumbers) else value


def _check_model(whole: WholeState, replica: Replica) -> None:
    """A part of another model may have the names and fewer numbers."""
    slots = replica.layout.slots
    own = replica.parts.whole.shapes if isinstance(replica, CutReplica) else {slot.name: slot.shape for slot in slots}
    for name, shape in own.items():
        numbers = whole.params.get(name)
        if numbers is None or len(numbers) != shape.numel() or whole.shapes[name][1:] != shape[1:]:
            raise _another(name)
    if more := [name for name in whole.params if name not in own]:
        raise CheckpointError(f"the checkpoint is of another model: it has {more[0]}, which this one has not")
    for name, tensor in replica.layout.others().items():
        if name not in whole.others or whole.others[name].shape != tensor.shape:
            raise _another(name)


def _another(name: str) -> CheckpointError:
    return CheckpointError(f"the checkpoint is of another model: it has no {name} of this size")


def _cut(numbers: Tensor, runs: Runs | None) -> Tensor:
    """A member's part of a tensor that is laid out flat; all of it without runs."""
    if runs is None:
        return numbers
    return torch.cat([numbers[start : start + size] for start, size in runs])


def _numbers(vector: Vector, slot: TensorSlot) -> Tensor:
    return vector.parts[slot.part][slot.start : slot.stop]


def _check_whole(state: Mapping[str, Any]) -> None:
    if [list(ranges(ends)) for ends in state["piece"]] != [[(0, len(part))] for part in state["params"].parts]:
        raise CheckpointError(f"its servers hold pieces of the model: {SAME}, or keep 1 server for each")
