"""How one dimension of a tensor is divided among the members of a group, and what becomes of that in a view of it.

A dimension is a row of blocks. Each block is dealt out by units, which stay whole: the units of attention are heads. A
layer that makes queries, keys and values in one has three blocks, so that every member has the three of its heads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from covey.vector import chunk

MOST_BLOCKS = 64  # of one dimension; what would have more is brought together instead


class UnitBlock(NamedTuple):
    """A run of units with so many numbers each; `chunk` deals the units out."""

    units: int
    size: int = 1

    @property
    def numbers(self) -> int:
        return self.units * self.size


Blocks = tuple[UnitBlock, ...]


class Origin(NamedTuple):
    """Which parameter a divided dimension comes from: at which of its rows or columns it begins, and how many of them
    make one step along the dimension."""

    name: str
    begin: int = 0
    scale: int = 1


@dataclass(frozen=True, slots=True)
class SplitLayout:
    """Which dimension of a tensor is divided, and how."""

    dim: int
    blocks: Blocks
    origins: frozenset[Origin] = frozenset()

    @property
    def numbers(self) -> int:
        """Of the whole dimension."""
        return length(self.blocks)

    def at(self, dim: int) -> SplitLayout:
        """The same at another dimension."""
        return SplitLayout(dim, self.blocks, self.origins)


def length(blocks: Iterable[UnitBlock]) -> int:
    return sum(block.numbers for block in blocks)


def ranges_of(blocks: Blocks, members: int, member: int) -> list[tuple[int, int]]:
    """A member's numbers along the whole dimension, one range for each block."""
    found, begin = [], 0
    for block in blocks:
        first, stop = chunk(block.units, members, member)
        found.append((begin + first * block.size, begin + stop * block.size))
        begin += block.numbers
    return found


def inside(blocks: Blocks, first: int, stop: int) -> tuple[Blocks, Blocks] | None:
    """The blocks before a range, and those in it; None where the range does not end where blocks do."""
    before, within, at = list[UnitBlock](), list[UnitBlock](), 0
    for block in blocks:
        if at < first < at + block.numbers or at < stop < at + block.numbers:
            return None
        (before if at < first else within if at < stop else []).append(block)
        at += block.numbers
    return tuple(before), tuple(within)


def refined(blocks: Blocks, first: int, wish: Blocks) -> Blocks:
    """The blocks with those of `wish` from a place on; what it cuts apart is dealt out in units of the same size, or
    number by number where that does not come out even."""
    stop, at, found, put = first + length(wish), 0, list[UnitBlock](), False
    for block in blocks:
        end = at + block.numbers
        if at < first:
            found += _part(block, min(end, first) - at)
        if end > first and not put:
            found, put = [*found, *wish], True
        if end > stop:
            found += _part(block, end - max(at, stop))
        at = end
    return tuple(found)


def _part(block: UnitBlock, numbers: int) -> list[UnitBlock]:
    return [UnitBlock(numbers // block.size, block.size) if numbers % block.size == 0 else UnitBlock(numbers)]


@dataclass(frozen=True, slots=True)
class Misfit:
    """A view that does not keep the units whole, and the blocks of the dimension with which it would."""

    wish: Blocks | None


def viewed(split: SplitLayout, old: Sequence[int], new: Sequence[int]) -> SplitLayout | Misfit:
    """What is divided in a view of a tensor with other dimensions."""
    found = _factors(old, new, split.dim)
    if found is None:
        return Misfit(None)
    before, after, made, place = found
    outer, inner = prod(before), prod(after)
    if outer * len(split.blocks) > MOST_BLOCKS:
        return Misfit(None)
    flat = [UnitBlock(block.units, block.size * inner) for block in split.blocks] * outer
    for index, size in enumerate(made):
        sets, step = prod(made[:index]), prod(made[index + 1 :])
        each = len(flat) // sets
        if size == 1 or len(flat) % sets or flat != flat[:each] * sets or length(flat[:each]) != size * step:
            continue
        if all(block.size % step == 0 for block in flat):
            blocks = tuple(UnitBlock(block.units, block.size // step) for block in flat[:each])
            return SplitLayout(place + index, blocks, _moved(split.origins, outer * sets, inner, step))
    return Misfit(_wish(made) if outer == inner == 1 else None)


def _wish(made: Sequence[int]) -> Blocks | None:
    """Of a dimension that becomes (heads, width), or (3, heads, width): queries, keys and values in one."""
    large = [index for index, size in enumerate(made) if size > 1]
    if not large:
        return None
    index = large[1] if len(large) > 2 and made[large[0]] <= 3 else large[0]
    sets = prod(made[:index])
    return (UnitBlock(made[index], prod(made[index + 1 :])),) * sets if sets <= MOST_BLOCKS else None


def _moved(origins: frozenset[Origin], sets: int, inner: int, step: int) -> frozenset[Origin]:
    if sets > 1:
        return frozenset()
    kept = [origin for origin in origins if origin.scale * step % inner == 0]
    return frozenset(Origin(one.name, one.begin, one.scale * step // inner) for one in kept)


def _factors(
    old: Sequence[int], new: Sequence[int], dim: int
) -> tuple[Sequence[int], Sequence[int], Sequence[int], int] | None:
    """The old sizes before and after a dimension that a view merges with it, the new sizes that it makes of them, and
    where the first of those is."""
    if 0 in old or prod(old) != prod(new):
        return None
    i = j = 0
    while i < len(old):
        first, place = i, j
        here, there = old[i], new[j] if j < len(new) else 1
        i, j = i + 1, j + 1
        while here != there:
            if here < there:
                here, i = here * old[i], i + 1
            else:
                there, j = there * new[j], j + 1
        if first <= dim < i:
            return old[first:dim], old[dim + 1 : i], new[place:j], place
    return None
