"""What does a checkpoint keep of a role? Tensors as safetensors, the rest as JSON."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import msgspec
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from covey.checkpoint.blocks import NamedNumbers, index, read_index
from covey.checkpoint.files import opened, read_object
from covey.checkpoint.packing import pack, stands_for, unpack
from covey.checkpoint.tensors import Placed
from covey.decoding import UNREADABLE, brief
from covey.errors import CheckpointError
from covey.message import Address, Message

T = TypeVar("T")


@dataclass(slots=True)
class RoleState:
    """Everything of one role that a restart needs; what its coroutine held is not among it."""

    done: int  # the step that begins next
    seconds: float  # of training
    memories: dict[str, Any]  # by name
    replica: dict[str, Any]
    chance: list[Any]
    mailbox: list[Message]

    @staticmethod
    def of(*, rng: Random, **fields: Any) -> RoleState:
        version, state, gauss = rng.getstate()
        return RoleState(chance=[version, list(state), gauss], **fields)

    def restore_chance(self, rng: Random) -> None:
        try:
            version, state, gauss = self.chance
            rng.setstate((version, tuple(state), gauss))
        except UNREADABLE as error:
            raise CheckpointError(f"the checkpoint keeps no state of a random generator: {error}") from None

    def recall(self, name: str, fresh: T) -> T:
        """The value remembered by this name, as a value of the kind that the program asks for."""
        kept = self.memories[name]
        if isinstance(kept, Mapping) and "$value" in kept:
            try:
                return msgspec.convert(kept["$value"], type(fresh), str_keys=True)
            except UNREADABLE as error:
                raise CheckpointError(f"what the checkpoint keeps as {name!r} cannot be read: {error}") from None
        if not stands_for(kept, fresh):
            raise CheckpointError(f"what the checkpoint keeps as {name!r} is not what this program remembers")
        return kept  # type: ignore[no-any-return]  # tensors and plain values come back as they were

    def copied(self, named: Callable[[dict[str, Any]], Iterable[NamedNumbers]] = lambda replica: ()) -> StateCopy:
        """The state as it is now, to be written later; `named` finds the numbers of the model in a kept replica."""
        tensors: dict[str, Tensor] = {}
        tree = {field.name: pack(getattr(self, field.name), tensors, field.name) for field in dataclasses.fields(self)}
        placed = Placed(tensors)
        tree["blocks"] = index(named(unpack(tree["replica"], tensors)), placed)
        return StateCopy(tree, placed)

    def write(self, directory: Path, who: Address) -> None:
        self.copied().write(directory, who)

    @staticmethod
    def read(directory: Path, who: Address) -> RoleState:
        try:
            with opened(_file(directory, who, "safetensors")):
                tensors = load_file(_file(directory, who, "safetensors"))
            # Products of MKL depend on where numbers begin on some processors: what programs use begins as torch's do.
            used = [name for name in tensors if name.startswith(("memories", "mailbox"))]
            tensors |= {name: tensors[name].clone() for name in used}
            tree = read_object(_file(directory, who, "json"))
            length = sum(tensor.nbytes for tensor in tensors.values())
            read_index(tree.pop("blocks", []), length)  # a /2 has none
            state = RoleState(**{name: unpack(value, tensors) for name, value in tree.items()})
            state.check()
        except (OSError, SafetensorError, *UNREADABLE, CheckpointError) as error:
            raise CheckpointError(f"{directory} holds no readable state of {who}: {brief(error)}") from None
        return state

    def check(self) -> None:
        """Refuse what no role can have kept."""
        if type(self.done) is not int or self.done < 0:
            raise ValueError(f"{self.done!r} steps cannot have been done")
        if not isinstance(self.seconds, float | int) or not 0 <= self.seconds < math.inf:
            raise ValueError(f"{self.seconds!r} seconds cannot have passed")
        if not all(isinstance(one, Message) for one in self.mailbox) or not isinstance(self.mailbox, list):
            raise ValueError("its mailbox has something else than messages")
        if not isinstance(self.memories, dict) or not isinstance(self.replica, dict):
            raise ValueError("what it remembers has no names")


@dataclass(frozen=True, slots=True)
class StateCopy:
    """A role's state as it was at one moment, which training does not change any more."""

    tree: dict[str, Any]
    placed: Placed

    def write(self, directory: Path, who: Address) -> None:
        self.placed.write(_file(directory, who, "safetensors"))
        _file(directory, who, "json").write_text(json.dumps(self.tree))


def _file(directory: Path, who: Address, kind: str) -> Path:
    return Path(directory) / f"{who.role}-{who.rank}.{kind}"
