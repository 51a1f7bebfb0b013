"""A checkpoint of one cut as one of another: what the stages of a replica kept, put together and divided by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from torch import Tensor

from covey.checkpoint import RoleState
from covey.errors import CheckpointError
from covey.message import Message
from covey.model.replica import Replica
from covey.model.slots import TensorSlot, read_description
from covey.parallelism.pipeline.stage_worker import Told
from covey.parallelism.pipeline.stash import STASH
from covey.vector import Vector, ranges


def recut(kept: Sequence[RoleState], replica: Replica, *, begin: bool) -> RoleState:
    """What a role with this part of the model goes on from; `kept` is what the old stages of its replica kept.

    Versions of the weights for batches under way fit no other cut: a pipeline that never flushes begins anew (`begin`).
    """
    for state in kept:
        if [list(ranges(ends)) for ends in state.replica["piece"]] != [
            [(0, len(p))] for p in state.replica["params"].parts
        ]:
            raise CheckpointError(
                "its servers hold pieces of stages: go on with the same cut, or keep 1 server for each"
            )
    new = _New(kept, replica)
    memories = [{name: value for name, value in state.memories.items() if name != STASH} for state in kept]
    unread = [[message for message in state.mailbox if not isinstance(message, Told)] for state in kept]
    if len({len(each) for each in unread}) != 1:
        raise CheckpointError("its stages have unequal numbers of unread messages: go on with the same cut")
    first = kept[0]
    return RoleState(
        done=first.done, seconds=max(state.seconds for state in kept), chance=first.chance,
        memories={**new.value(memories), **({STASH: {}} if begin else {})},
        mailbox=[new.value(each) for each in zip(*unread, strict=True)],
        replica=new.replica_state(),
    )  # fmt: skip


class _New:
    """Divides anew what old stages held."""

    def __init__(self, kept: Sequence[RoleState], replica: Replica) -> None:
        self.states, self.replica = [state.replica for state in kept], replica
        self.old = [(read_description(state["layout"]), read_description(state["floats"])) for state in self.states]

    def replica_state(self) -> dict[str, Any]:
        layout, optimizer = self.replica.layout, self.replica.optimizer.state_dict()
        others = {name: buffer for state in self.states for name, buffer in state["others"].items()}
        return {
            "layout": layout.describe(), "floats": layout.describe_floats(),
            "params": self.vector([state["params"] for state in self.states]),
            "buffers": self._made(self._named([state["buffers"] for state in self.states], 1), layout.buffer_slots),
            "others": {name: others[name] for name in layout.others()},
            "optimizer": self._optimizer(optimizer), "seen": self.states[0]["seen"],
            "piece": tuple((0, len(part)) for part in self.replica.flat.parts),
            "optimizer_class": self.states[0]["optimizer_class"],
            **({"heard": self.states[0]["heard"]} if "heard" in self.states[0] else {}),
        }  # fmt: skip

    def value(self, given: Sequence[Any]) -> Any:
        """One remembered thing, of which each old stage had its own; of times and counts the first stage's."""
        first = given[0]
        if isinstance(first, Vector):
            return self.vector(given)
        if isinstance(first, Message):
            fields = {name: self.value([getattr(one, name) for one in given]) for name in first.__struct_fields__}
            return msgspec.structs.replace(first, **fields)
        if isinstance(first, Mapping):
            _same([sorted(map(str, one)) for one in given])
            return {key: self.value([one[key] for one in given]) for key in first}
        if isinstance(first, list | tuple):
            _same([len(one) for one in given])
            return type(first)(self.value(each) for each in zip(*given, strict=True))
        if isinstance(first, Tensor):
            raise CheckpointError("it remembers tensors that belong to its cut: go on with the same cut")
        return first

    def vector(self, given: Sequence[Vector]) -> Vector:
        """Of the parameters, or of these and the float buffers."""
        if not any(one.parts for one in given):
            return Vector(())
        layout, sizes = self.replica.layout, [tuple(map(len, one.parts)) for one in given]
        flats = [tuple(map(len, state["params"].parts)) for state in self.states]
        if sizes == flats:
            return self._made(self._named(given, 0), layout.slots)
        models = [flat + tuple(map(len, s["buffers"].parts)) for flat, s in zip(flats, self.states, strict=True)]
        if sizes != models:
            raise CheckpointError("it remembers numbers that belong to its cut: go on with the same cut")
        params = [Vector(one.parts[: len(flat)]) for one, flat in zip(given, flats, strict=True)]
        floats = [Vector(one.parts[len(flat) :]) for one, flat in zip(given, flats, strict=True)]
        made = self._made(self._named(floats, 1), layout.buffer_slots)
        return self._made(self._named(params, 0), layout.slots).join(made)

    def _named(self, given: Sequence[Vector], which: int) -> dict[str, Tensor]:
        return {
            one.name: vector.parts[one.part][one.start : one.stop]
            for vector, old in zip(given, self.old, strict=True)
            for one in old[which]
        }

    def _made(self, named: Mapping[str, Tensor], slots: Iterable[TensorSlot]) -> Vector:
        like = self.replica.flat if slots is self.replica.layout.slots else self.replica.buffers
        made = like.clone()
        for slot in slots:
            if slot.name not in named:
                raise CheckpointError(f"the checkpoint is of another model: it has no {slot.name}")
            made.parts[slot.part][slot.start : slot.stop].copy_(named[slot.name])
        return made

    def _optimizer(self, fresh: dict[str, Any]) -> dict[str, Any]:
        """The new stage's optimizer with the old ones' state of each parameter, by name."""
        kept: dict[str, tuple[Any, dict[str, Any]]] = {}
        for state in self.states:
            old = state["optimizer"]
            for group in old["param_groups"]:
                rest = {key: value for key, value in group.items() if key not in ("params", "param_names")}
                for number, name in zip(group["params"], group["param_names"], strict=True):
                    kept[name] = old["state"].get(number), rest
        found: dict[int, Any] = {}
        groups = []
        for group in fresh["param_groups"]:
            names = group["param_names"]
            groups.append({**group, **(kept[names[0]][1] if names else {})})
            for number, name in zip(group["params"], names, strict=True):
                if kept[name][0] is not None:
                    found[number] = kept[name][0]
        return {"state": found, "param_groups": groups}


def _same(given: Sequence[Any]) -> None:
    if any(one != given[0] for one in given):
        raise CheckpointError("its stages remember different things: go on with the same cut")
