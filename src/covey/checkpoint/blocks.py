"""Which numbers of a file belong to which parameter? An index by name, which needs no knowledge of who wrote it."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import msgspec
import torch
from torch import Tensor

from covey.checkpoint.tensors import Placed

Kind = Literal["parameter", "buffer", "counter", "optimizer"]


@dataclass(frozen=True, slots=True)
class NamedNumbers:
    """What a role holds of one tensor of the model, or of an optimizer's state of one.

    `first` is the place in the whole, flat tensor at which it begins: a server may hold a slice.
    """

    kind: Kind
    name: str
    key: str  # of an optimizer's state, such as momentum_buffer
    shape: tuple[int, ...]  # of the whole tensor
    first: int
    numbers: Tensor


class Block(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where such numbers lie in the role's safetensors file: `offset` and `size` in bytes, from its header's end."""

    kind: Kind
    name: str
    key: str = ""
    dtype: str
    shape: tuple[int, ...]
    first: int = 0
    offset: int
    size: int

    def check(self, length: int) -> None:
        """Refuse a block that cannot be in a file with this many bytes of numbers."""
        dtype = getattr(torch, self.dtype, None)
        if not isinstance(dtype, torch.dtype):
            raise ValueError(f"the block {self.name!r} has numbers of an unknown kind {self.dtype[:40]!r}")
        whole = math.prod(self.shape)
        if not all(0 <= side < 1 << 53 for side in self.shape) or not 0 <= self.first <= whole:
            raise ValueError(f"the block {self.name!r} lies outside its tensor")
        if self.size < 0 or self.size % dtype.itemsize or self.first + self.size // dtype.itemsize > whole:
            raise ValueError(f"the block {self.name!r} has {self.size} bytes, which its shape does not have")
        if not 0 <= self.offset <= length - self.size:
            raise ValueError(f"the block {self.name!r} lies outside its file")


def index(found: Iterable[NamedNumbers], placed: Placed) -> list[Any]:
    """Where these numbers, which are views of the placed tensors, lie in the file; as JSON."""
    tensors = sorted((tensor.data_ptr(), name) for name, tensor in placed.tensors.items() if tensor.numel())
    starts = [start for start, _ in tensors]
    blocks = []
    for one in found:
        start, offset = one.numbers.data_ptr(), 0
        if one.numbers.numel():
            begin, name = tensors[bisect_right(starts, start) - 1]
            offset = placed.offsets[name] + start - begin
        blocks.append(
            Block(
                kind=one.kind, name=one.name, key=one.key, dtype=str(one.numbers.dtype).removeprefix("torch."),
                shape=one.shape, first=one.first, offset=offset, size=one.numbers.nbytes,
            )
        )  # fmt: skip
    return [msgspec.to_builtins(block) for block in blocks]


def read_index(tree: Any, length: int) -> list[Block]:
    """The blocks of a file with this many bytes of numbers; refused where one cannot be in it, or is there twice."""
    blocks = msgspec.convert(tree, list[Block])
    for block in blocks:
        block.check(length)
    _refuse_overlaps(blocks)
    return blocks


def _refuse_overlaps(blocks: Sequence[Block]) -> None:
    """Each number belongs to one name, and each name has each of its numbers once."""
    names = [(block.kind, block.name, block.key, block.first) for block in blocks]
    if len(set(names)) < len(names):
        raise ValueError("a block is listed twice")
    order = sorted((block for block in blocks if block.size), key=lambda block: block.offset)
    for before, after in pairwise(order):
        if before.offset + before.size > after.offset:
            raise ValueError(f"the blocks {before.name!r} and {after.name!r} overlap")
