"""What can a run with other roles go on from? The model and the optimizer's state by name, of all that was kept."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from covey.checkpoint import RoleState
from covey.checkpoint.blocks import Kind, NamedNumbers
from covey.errors import CheckpointError
from covey.message import Address
from covey.model.named import named_numbers, states
from covey.model.optimizers import check_loaded
from covey.model.replica import Replica
from covey.model.slots import read_description
from covey.vector import Vector

Key = tuple[Kind, str, str]


@dataclass(slots=True)
class InheritedModel:
    """One model, put together from the roles of a run: slices side by side, copies averaged."""

    layout: list[str]
    optimizer_class: str
    numbers: dict[Key, Tensor] = field(default_factory=dict)
    plain: dict[tuple[str, str], Any] = field(default_factory=dict)  # what optimizers keep besides tensors
    heard: list[float] = field(default_factory=list)  # scores that a scheduler follows
    averaged: set[str] = field(default_factory=set)  # what differed between roles: kinds, or keys of optimizers

    def restore(self, replica: Replica, seen: int) -> None:
        """Let a replica have the model and the optimizer's state; refused where it is of another model."""
        ours = type(replica.optimizer).__name__
        if differs := replica.layout.differs(self.layout):
            raise CheckpointError(f"the checkpoint is of another model: {differs}")
        if self.optimizer_class != ours:
            raise CheckpointError(
                f"the checkpoint is of a run whose optimizer is {self.optimizer_class}, this one has {ours}: use the "
                "same one, or start anew"
            )
        layout = replica.layout
        owners = Counter(id(parameter) for group in replica.optimizer.param_groups for parameter in group["params"])
        for slot in layout.slots:
            if owners[id(layout.parameters[slot.name])] > 1:
                raise CheckpointError(
                    f"several optimizers have {slot.name}, and the checkpoint does not say which state is whose: go on "
                    "with as many workers and servers as before, or start anew"
                )
            slot.view(layout.params).copy_(self._found("parameter", slot.name).view(slot.shape))
            state = replica.optimizer.state[layout.parameters[slot.name]]
            for (kind, name, key), value in self.numbers.items():
                if kind == "optimizer" and name == slot.name:
                    where = "cpu" if value.dim() == 0 else layout.params.parts[slot.part].device
                    state[key] = value.to(where, copy=True)
            state.update({key: value for (name, key), value in self.plain.items() if name == slot.name})
            if not state:
                del replica.optimizer.state[layout.parameters[slot.name]]
        for slot in layout.buffer_slots:
            slot.view(layout.buffers).copy_(self._found("buffer", slot.name).view(slot.shape))
        for name, buffer in layout.others().items():
            buffer.copy_(self._found("counter", name).view(buffer.shape))
        check_loaded(replica.optimizer, replica.optimizer.param_groups)
        replica.progress.restore(seen, self.heard)
        replica.progress.lead(replica.optimizer)
        replica.updates.inherited = True

    def _found(self, kind: Kind, name: str) -> Tensor:
        if (kind, name, "") not in self.numbers:
            raise CheckpointError(f"the checkpoint is of another model: it has no {name}")
        return self.numbers[kind, name, ""]


def inherited(kept: Mapping[Address, RoleState], scored: Collection[Address]) -> InheritedModel:
    """The model that the run would have scored, and what all optimizers kept."""
    first = next(state.replica for address, state in kept.items() if address in scored)
    made = InheritedModel(first["layout"], first["optimizer_class"], heard=[*map(float, first.get("heard", ()))])
    bearers = [who for who in scored if kept[who].replica.get("buffers_kept", who.role != "server" or who.rank == 0)]
    found: dict[Key, list[tuple[float, NamedNumbers]]] = {}
    for address, state in kept.items():
        replica = _displayed(state.replica)
        for one in named_numbers(replica):
            mine = {"parameter": address in scored, "buffer": address in bearers}.get(one.kind, True)
            if mine:
                weight = _weight(replica) if one.kind in ("parameter", "buffer") else 1.0
                found.setdefault((one.kind, one.name, one.key), []).append((weight, one))
        for member, values in states(replica, read_description(replica["layout"])):
            made.plain.update({(member[0], k): value for k, value in values.items() if not isinstance(value, Tensor)})
    for key, given in found.items():
        made.numbers[key], differ = _merged(given)
        if differ:
            made.averaged.add(key[2] or f"{key[0]}s")
    return made


def _weight(kept: Mapping[str, Any]) -> float:
    """How much a role's model counts in the mean."""
    weight = float(kept.get("weight", 1.0))
    if not 0 <= weight < math.inf:
        raise ValueError(f"a model cannot count {weight:g} in a mean")
    return weight


def _displayed(kept: Mapping[str, Any]) -> Mapping[str, Any]:
    """A replica's state with the model that its program shows, where that is another one."""
    if "shown" not in kept:
        return kept
    count = len(kept["params"].parts)
    parts = kept["shown"].parts
    return {**kept, "params": Vector(parts[:count]), "buffers": Vector(parts[count:])}


def _merged(given: list[tuple[float, NamedNumbers]]) -> tuple[Tensor, bool]:
    """The whole tensor, and whether roles had different numbers; of counts the largest."""
    like = given[0][1]
    size, dtype = math.prod(like.shape), like.numbers.dtype
    if not dtype.is_floating_point or like.key == "step":
        return torch.stack([one.numbers for _, one in given]).amax(0).reshape(like.shape), False
    if len(given) == 1 and len(like.numbers) == size:
        return like.numbers.reshape(like.shape), False
    whole, total, weights = torch.zeros(size, dtype=dtype), *torch.zeros(2, size, dtype=torch.float64)
    differ = False
    for weight, one in given:
        place = slice(one.first, one.first + len(one.numbers))
        before = weights[place] > 0
        differ = differ or not torch.equal(whole[place][before], one.numbers[before])
        whole[place] = one.numbers
        total[place] += one.numbers.double() * weight
        weights[place] += weight
    if like.kind == "parameter" and not weights.all():
        raise CheckpointError(f"the checkpoint has only a part of {like.name}")
    mean = (total / weights.clamp(min=1e-300)).to(dtype) if differ else whole
    return mean.reshape(like.shape), differ
