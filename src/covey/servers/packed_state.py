"""How does what a worker holds travel to another one? As a few flat tensors, and a tree that says what they are."""

from __future__ import annotations

from typing import Any

import msgspec
import torch
from torch import Tensor

from covey.checkpoint.packing import pack, unpack
from covey.decoding import UNREADABLE, WireFormat
from covey.errors import WireError
from covey.vector import Vector

LARGE = 1 << 20  # bytes from which a tensor is a part of its own


class TensorIndex(msgspec.Struct, array_like=True, frozen=True):
    """One tensor of a state: its name, in which of the flat ones it lies, from where, and its shape."""

    name: str
    part: int
    start: int
    shape: tuple[int, ...]


class StateTree(msgspec.Struct, array_like=True, frozen=True):
    """A state without its numbers, and where those are."""

    tree: Any
    tensors: list[TensorIndex]


_trees: WireFormat[StateTree] = WireFormat("state of a worker", StateTree)


def packed(state: dict[str, Any], *, copied: bool = True) -> Vector:
    """A state as a vector: its numbers, all of a kind in one part, and before them the tree, as bytes.

    With copied=False large tensors are parts without a copy: a message takes one when it is sent.
    """
    tensors: dict[str, Tensor] = {}
    tree = pack(state, tensors, copy=copied)
    parts: dict[object, list[Tensor]] = {}
    found = []
    for name, tensor in tensors.items():
        kind = (tensor.dtype, tensor.is_meta) if copied or tensor.nbytes < LARGE else name
        same = parts.setdefault(kind, [])
        found.append(TensorIndex(name, list(parts).index(kind), sum(map(torch.numel, same)), tuple(tensor.shape)))
        same.append(tensor.reshape(-1))
    told = msgspec.msgpack.encode(StateTree(tree, found))
    numbers = (same[0] if isinstance(kind, str) else torch.cat(same) for kind, same in parts.items())
    return Vector([torch.frombuffer(bytearray(told), dtype=torch.uint8), *numbers])


def unpacked(vector: Vector, sender: object) -> dict[str, Any]:
    """The state that somebody sent."""
    told, *parts = vector.parts
    known = _trees.read(told.numpy().tobytes(), sender)
    try:
        tensors = {one.name: _tensor(one, parts[one.part]) for one in known.tensors}
        return dict(unpack(known.tree, tensors))
    except UNREADABLE as error:
        raise WireError(f"{sender} sent a state that cannot be read: {error}") from None


def _tensor(one: TensorIndex, part: Tensor) -> Tensor:
    size = torch.Size(one.shape).numel()
    if one.start < 0 or one.start + size > part.numel():
        raise ValueError(f"{one.name} is not where it should be")
    return part[one.start : one.start + size].view(one.shape)
