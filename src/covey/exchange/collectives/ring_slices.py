"""Where a ring cuts a vector: borders that follow from the whole alone, so that a bucket is cut at the same places."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import NamedTuple

from torch import Tensor

from covey.vector import Vector, chunk

GRAIN = 1 << 20  # bytes of a slice
MOST = 32  # rows of slices
BUNDLE = 4  # rows that travel together: while they are added the next ones are on their way

Frame = tuple[tuple[int, int], ...]
"""For each part of a vector: where it begins in the part that it was taken from, and how long that one is."""


class SlicedVector(NamedTuple):
    """A vector, or what a bucket holds of it, and where that lies in the whole."""

    vector: Vector
    frame: Frame


def whole(vector: Vector) -> Frame:
    """Nothing was left out."""
    return tuple((0, part.numel()) for part in vector.parts)


def rows(vector: Vector, frame: Frame, size: int) -> list[list[SlicedVector]]:
    """The vector in bundled rows of `size` neighbouring slices of about a `GRAIN`; slice c of each row is added alike.

    A part of less than `size` grains is one row of equal slices. There is always a row, if only of empty slices.
    """
    found = [_rows(part, start, length, size) for part, (start, length) in zip(vector.parts, frame, strict=True)]
    joined = [[_join(slices) for slices in zip(*filter(None, row), strict=True)] for row in zip_longest(*found)]
    bundles = [joined[first : first + BUNDLE] for first in range(0, len(joined), BUNDLE)]
    return [[gather(row[c] for row in bundle) for c in range(size)] for bundle in bundles or [[]]]


class _Slice(NamedTuple):
    """Of one part: the numbers of it that are there, and their place in the whole slice."""

    numbers: Tensor
    start: int
    length: int


def _rows(part: Tensor, begin: int, length: int, size: int) -> list[list[_Slice]]:
    number, end = count(length * part.element_size(), size), begin + part.numel()
    touched = [row for row in range(number) if _meet(chunk(length, number, row), begin, end)] or [0]
    return [[_slice(part, begin, chunk(length, size * number, row * size + c)) for c in range(size)] for row in touched]


def count(nbytes: int, size: int) -> int:
    """How many rows a part of this many bytes has."""
    return min(MOST, max(1, -(-nbytes // (size * GRAIN))))


def _meet(ends: tuple[int, int], begin: int, end: int) -> bool:
    return ends[0] < end and begin < ends[1]


def _slice(part: Tensor, begin: int, ends: tuple[int, int]) -> _Slice:
    low = min(max(ends[0] - begin, 0), part.numel())
    high = max(low, min(ends[1] - begin, part.numel()))
    return _Slice(part[low:high], max(0, begin + low - ends[0]), ends[1] - ends[0])


def _join(slices: Iterable[_Slice]) -> SlicedVector:
    slices = tuple(slices)
    return SlicedVector(Vector(s.numbers for s in slices), tuple((s.start, s.length) for s in slices))


def gather(cuts: Iterable[SlicedVector]) -> SlicedVector:
    """Several side by side."""
    cuts = tuple(cuts)
    return SlicedVector(
        Vector(part for cut in cuts for part in cut.vector.parts), tuple(place for cut in cuts for place in cut.frame)
    )


def ring_slices(vector: Vector, size: int) -> list[int]:
    """The bytes that each member of a ring sums up."""
    found = [0] * size
    for part in vector.parts:
        pieces = size * count(part.numel() * part.element_size(), size)
        for place in range(pieces):
            start, stop = chunk(part.numel(), pieces, place)
            found[place % size] += (stop - start) * part.element_size()
    return found


def ring_sent(slices: Sequence[int]) -> list[int]:
    """What each member sends: all slices but one, twice (Patarasu & Yuan 2009)."""
    size, both = len(slices), 2 * sum(slices)
    return [both - slices[(place + 1) % size] - slices[(place + 2) % size] for place in range(size)]
