# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False
"""Triton: choosing numbers by their size in one pass over all; what follows reads the chosen ones alone.

A tile puts what it chooses into a pool, where the next free place is: in order within the tile, while tiles come as
they come; `pool` is how many found a place, or would have. A group is TILES tiles; of each there is a count, the
largest size and the sum of sizes, so that what comes before a group can be summed up by whoever needs it.
"""

from __future__ import annotations

import triton
import triton.language as tl

from covey.exchange.kernels.gpu_rows import INFINITE, sized, wanted

STRIDE = tl.constexpr(1024)


@triton.jit
def ones_in(word):
    word -= (word >> 1) & 0x55555555
    word = (word & 0x33333333) + ((word >> 2) & 0x33333333)
    return ((((word + (word >> 4)) & 0x0F0F0F0F) * 0x01010101) >> 24).to(tl.int32)


@triton.jit(do_not_specialize=["bits", "room"])
def take(
    x, r, floor, bits, pool, indices, values, tile_many, tile_base, tile_top, many, tops, totals, room, n,
    KNOWN: tl.constexpr, KEEP: tl.constexpr, ZERO: tl.constexpr, TILES: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """v goes to the residual, or 0 of what leaves; a tile with NaN or infinity stays as it is, and gives nothing.

    The threshold's bits are `bits`, or in `floor`. For tiles that come after the pool is full only their counts go on.
    A bit says of each number whether it reaches; then each word of 32 gives its lowest, until all are given.
    """
    tile = tl.program_id(0)
    at = tile * TILE + tl.arange(0, TILE)
    mask = at < n
    v = wanted(x, r, at, mask, KEEP)
    size = sized(v)
    top = tl.max(size)
    if not KNOWN:
        bits = tl.load(floor)
    reach = (size >= bits) & mask & (top < INFINITE)
    lane = tl.arange(0, 32)[None, :]
    word = tl.sum(tl.reshape(reach.to(tl.int32), (TILE // 32, 32)) << lane, axis=1).to(tl.uint32, bitcast=True)
    ones = ones_in(word)
    here = tl.sum(ones)
    base = tl.atomic_add(pool, here, sem="relaxed")
    fits = base + here <= room
    to = base + tl.cumsum(ones, 0) - ones
    start = tile * TILE + tl.arange(0, TILE // 32) * 32
    word = tl.where(fits, word, 0)
    while tl.max((word != 0).to(tl.int32)) != 0:
        lowest = word ^ (word & (word - 1))
        place = start + (lowest.to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 127
        some = word != 0
        tl.store(indices + to, place, mask=some)
        tl.store(values + to, wanted(x, r, place, some, KEEP), mask=some)
        to += 1
        word &= word - 1
    if KEEP:
        tl.debug_barrier()  # all have read what is written now
        tl.store(r + at, tl.where(reach & fits, 0.0, v) if ZERO else v, mask=mask & (top < INFINITE))
    tl.store(tile_many + tile, here)
    tl.store(tile_base + tile, base)
    tl.store(tile_top + tile, top)
    group = tile // TILES
    tl.atomic_max(tops + group, top, sem="relaxed")
    tl.atomic_add(many + group, here, sem="relaxed")
    tl.atomic_add(totals + group, tl.sum(tl.abs(v)).to(tl.float64), sem="relaxed")


@triton.jit
def sum_of(numbers, count, zero):
    """Of the first `count` numbers."""
    total = zero
    for first in range(0, count, STRIDE):
        lane = first + tl.arange(0, STRIDE)
        total += tl.sum(tl.load(numbers + lane, mask=lane < count, other=0))
    return total


@triton.jit
def most_of(tops, groups):
    """The largest of the sizes."""
    top = groups * 0
    for first in range(0, groups, STRIDE):
        lane = first + tl.arange(0, STRIDE)
        top = tl.maximum(top, tl.max(tl.load(tops + lane, mask=lane < groups, other=0)))
    return top


@triton.jit
def number(size):
    return size.to(tl.float32, bitcast=True).to(tl.float64)


@triton.jit(do_not_specialize=["room", "tiles", "groups"])
def put_in_order(
    pool, indices, values, tile_many, tile_base, many, tops, told, out_indices, out_values, room, tiles, groups,
    TILES: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """The pool in the order of the numbers, if all found a place; `told` is how many reach, and the largest size."""
    group = tl.program_id(0)
    every = tl.load(pool)
    tile = group * TILES + tl.arange(0, TILES)
    here = tl.load(tile_many + tile, mask=tile < tiles, other=0)
    base = tl.load(tile_base + tile, mask=tile < tiles, other=0)
    to = sum_of(many, group, group * 0) + tl.cumsum(here, 0) - here
    if every <= room:
        for first in range(0, tl.max(here), WIDE):
            lane = first + tl.arange(0, WIDE)[None, :]
            mask = lane < here[:, None]
            index = tl.load(indices + base[:, None] + lane, mask=mask, other=0)
            value = tl.load(values + base[:, None] + lane, mask=mask, other=0.0)
            tl.store(out_indices + to[:, None] + lane, index, mask=mask)
            tl.store(out_values + to[:, None] + lane, value, mask=mask)
    if group == 0:
        tl.store(told, every.to(tl.float64))
        tl.store(told + 1, number(most_of(tops, groups)))
