"""Rules for what only looks at a tensor in another way: other shapes, other orders, parts of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import prod
from types import EllipsisType
from typing import Any

import torch
from torch import Tensor

from covey.parallelism.tensor.elementwise import common
from covey.parallelism.tensor.group import Rule
from covey.parallelism.tensor.layout import Misfit, Origin, SplitLayout, UnitBlock, inside, viewed
from covey.parallelism.tensor.split_tensor import Function, NoRule, SplitTensor


def _value(args: Sequence[Any]) -> SplitTensor:
    if not args or not isinstance(args[0], SplitTensor):
        raise NoRule
    return args[0]


# -- other shapes -----------------------------------------------------------------------------------------------------


def reshape(name: str, func: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Whatever shape the whole value gets, its slice gets with as many units of the divided dimension as it has."""
    value = _value(args)
    with torch._C.DisableTorchFunctionSubclass():
        new = list(func(torch.empty(value.shape, device="meta"), *args[1:], **kwargs).shape)
    found = viewed(value.divided, list(value.shape), new)
    if isinstance(found, Misfit):
        value.group.wish(value.divided, found.wish)
        raise NoRule
    new[found.dim] = value.group.extent(found.blocks)
    return SplitTensor(value.local.reshape(new), found, value.group)


# -- other orders, and parts along other dimensions -------------------------------------------------------------------


def moved(name: str, func: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Done with the slice as it is done with the whole, where the divided dimension stays whole."""
    value = _value(args)
    places = _places(value, func, args[1:], kwargs)
    if any(place is None or (first, stop) != (0, value.divided.numbers) for place, first, stop in places):
        raise NoRule
    made = func(value.local, *args[1:], **kwargs)
    outs = [made] if isinstance(made, Tensor) else list(made)
    found = [
        SplitTensor(one, value.divided.at(place), value.group) for one, (place, *_) in zip(outs, places, strict=True)
    ]
    return found[0] if isinstance(made, Tensor) else type(made)(found)


def _places(
    value: SplitTensor, func: Function, rest: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[tuple[Any, int, int]]:
    """For every result: which of its dimensions is the divided one, and from where to where it has that.

    Told by a tensor without numbers in which that dimension alone has the largest stride.
    """
    sizes, dim = list(value.shape), value.divided.dim
    mark = 1 + prod(size for place, size in enumerate(sizes) if place != dim)
    strides = [prod(s for p, s in enumerate(sizes) if p > place and p != dim) for place in range(len(sizes))]
    strides[dim] = mark
    like = torch.empty_strided(sizes, strides, device="meta")
    made = func(like, *rest, **kwargs)
    found = []
    for one in [made] if isinstance(made, Tensor) else made:
        places = [place for place in range(one.dim()) if one.stride(place) == mark and one.shape[place] > 1]
        first = one.storage_offset() // mark
        found.append((places[0], first, first + one.shape[places[0]]) if len(places) == 1 else (None, 0, 0))
    return found


def expand(name: str, func: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    value = _value(args)
    sizes = list(args[1] if len(args) == 2 and not isinstance(args[1], int) else args[1:])
    place = value.divided.dim + len(sizes) - value.dim()
    if kwargs or name != "expand" or sizes[place] not in (-1, value.divided.numbers):
        raise NoRule
    sizes[place] = -1
    return SplitTensor(value.local.expand(sizes), value.divided.at(place), value.group)


# -- parts along the divided dimension --------------------------------------------------------------------------------


def part(value: SplitTensor, first: int, stop: int) -> SplitTensor:
    """A range of the divided dimension, if it has whole blocks."""
    split, group = value.divided, value.group
    found = inside(split.blocks, first, stop)
    if found is None:
        ends = 0, first, stop, split.numbers
        group.wish(split, tuple(UnitBlock(b - a) for a, b in pairwise(ends) if b > a))
        raise NoRule
    before, blocks = found
    origins = frozenset(Origin(one.name, one.begin + first * one.scale, one.scale) for one in split.origins)
    local = value.local.narrow(split.dim, group.extent(before), group.extent(blocks))
    return SplitTensor(local, SplitLayout(split.dim, blocks, origins), group)


def cut(name: str, func: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Chunks of a value: along the divided dimension each has whole blocks of it."""
    value = _value(args)
    places = _places(value, func, args[1:], kwargs)
    if any(place != value.divided.dim for place, _, _ in places):
        raise NoRule
    if all((first, stop) == (0, value.divided.numbers) for _, first, stop in places):
        return moved(name, func, args, kwargs)
    if (missing := _wished(value, places)) is not None:
        value.group.wish(value.divided, missing)
        raise NoRule
    found = [part(value, first, stop) for _, first, stop in places]
    return found[0] if name == "narrow" else tuple(found)


def _wished(value: SplitTensor, places: Sequence[tuple[Any, int, int]]) -> tuple[UnitBlock, ...] | None:
    """The blocks of which all results would have whole ones, if they have not."""
    if all(inside(value.divided.blocks, first, stop) for _, first, stop in places):
        return None
    ends = sorted({0, value.divided.numbers, *(end for _, first, stop in places for end in (first, stop))})
    return tuple(UnitBlock(b - a) for a, b in pairwise(ends))


def index(name: str, func: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Numbers, slices, None and ... as an index; along the divided dimension slices of whole blocks."""
    value = _value(args)
    asked = args[1] if isinstance(args[1], tuple) else (args[1],)
    if not all(isinstance(one, int | slice | EllipsisType | None) and not isinstance(one, bool) for one in asked):
        raise NoRule
    (place, first, stop), *_ = _places(value, func, [asked], {})
    if place is None:
        raise NoRule
    if (first, stop) == (0, value.divided.numbers):
        return SplitTensor(func(value.local, asked), value.divided.at(place), value.group)
    dims = sum(isinstance(one, int | slice) for one in asked)
    if not any(one is ... for one in asked):
        asked = (*asked, ...)
    filled = [slice(None)] * (value.dim() - dims)
    full = [one for given in asked for one in (filled if given is ... else [given])]
    at = [number for number, one in enumerate(full) if one is not None][value.divided.dim]
    full[at] = slice(None)
    of_part = part(value, first, stop)
    return SplitTensor(of_part.local[tuple(full)], of_part.divided.at(place), value.group)


# -- several values ---------------------------------------------------------------------------------------------------


def joined(name: str, func: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Values side by side, all divided; or on top of each other."""
    if not args or kwargs.keys() - {"dim", "axis"}:
        raise NoRule
    values = list(args[0])
    dim = args[1] if len(args) > 1 else kwargs.get("dim", kwargs.get("axis", 0))
    if not all(isinstance(value, SplitTensor) for value in values) or not isinstance(dim, int):
        raise NoRule
    first = values[0]
    if name != "stack" and all(dim % value.dim() == value.divided.dim for value in values):
        made = torch.cat([value.local for value in values], dim)
        blocks = tuple(block for value in values for block in value.divided.blocks)
        return SplitTensor(made, SplitLayout(first.divided.dim, blocks), first.group)
    layout = common(values)
    made = func([value.local for value in values], dim)
    place = first.divided.dim
    if name == "stack":
        place += dim % made.dim() <= place
    return SplitTensor(made, layout.at(place), first.group)


def repeat_interleave(name: str, func: Function, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Heads of keys and values that serve several heads of queries."""
    value = _value(args)
    times = args[1] if len(args) > 1 else kwargs.get("repeats")
    dim = args[2] if len(args) > 2 else kwargs.get("dim")
    if not isinstance(times, int) or not isinstance(dim, int):
        raise NoRule
    made, split = value.local.repeat_interleave(times, dim), value.divided
    if dim % value.dim() == split.dim:
        split = SplitLayout(split.dim, tuple(UnitBlock(block.units, block.size * times) for block in split.blocks))
    return SplitTensor(made, split, value.group)


_MOVED = [
    "transpose", "swapaxes", "swapdims", "permute", "movedim", "moveaxis", "t", "T", "mT", "unsqueeze", "squeeze",
    "unbind", "select",
]  # fmt: skip
_CUT = [
    "chunk", "split", "split_with_sizes", "tensor_split", "narrow",
]  # fmt: skip
VIEWS: dict[str, Rule] = {
    **dict.fromkeys(("view", "reshape", "flatten", "unflatten"), reshape), **dict.fromkeys(_MOVED, moved),
    **dict.fromkeys(_CUT, cut), **dict.fromkeys(("cat", "concat", "concatenate", "stack"), joined),
    "expand": expand, "__getitem__": index, "repeat_interleave": repeat_interleave,
}  # fmt: skip
