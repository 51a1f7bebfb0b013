# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False
"""Triton: choosing numbers by their size, in order. One pass over all notes with a bit each which ones count; what
follows reads the bits and the chosen numbers alone.

`told` holds how many count, the largest size, the sum of sizes, and whether what was made of it stands.
"""

from __future__ import annotations

import triton
import triton.language as tl

from covey.exchange.kernels.gpu_rows import INFINITE, packed, sized, wanted


@triton.jit(do_not_specialize=["bits"])
def mark(
    x, r, floor, bits, words, counts, tops, totals, n, KNOWN: tl.constexpr, KEEP: tl.constexpr, TILE: tl.constexpr
):
    """v goes to the residual, unless its tile holds NaN or infinity. The threshold's bits are `bits`, or in `floor`."""
    tile = tl.program_id(0)
    at = tile * TILE + tl.arange(0, TILE)
    mask = at < n
    v = wanted(x, r, at, mask, KEEP)
    size = sized(v)
    top = tl.max(size)
    if not KNOWN:
        bits = tl.load(floor)
    reach = ((size >= bits) & mask).to(tl.int32)
    packed(reach, words, tile * TILE, n, 1, TILE)
    tl.store(counts + tile, tl.sum(reach))
    tl.store(tops + tile, top)
    tl.store(totals + tile, tl.sum(tl.abs(v)))
    if KEEP:
        tl.store(r + at, v, mask=mask & (top < INFINITE))


@triton.jit
def ledger(counts, tops, totals, ends, told, tiles, LOOPS: tl.constexpr, WIDE: tl.constexpr):
    """Where each tile's choice ends, and what is to be told."""
    before = tl.program_id(0) * 0
    top = tl.zeros((WIDE,), tl.int32)
    total = tl.zeros((WIDE,), tl.float64)
    for loop in range(LOOPS):
        at = loop * WIDE + tl.arange(0, WIDE)
        many = tl.load(counts + at, mask=at < tiles, other=0)
        tl.store(ends + at, before + tl.cumsum(many, 0), mask=at < tiles)
        before += tl.sum(many)
        top = tl.maximum(top, tl.load(tops + at, mask=at < tiles, other=0))
        total += tl.load(totals + at, mask=at < tiles, other=0.0).to(tl.float64)
    tl.store(told, before.to(tl.float64))
    tl.store(told + 1, tl.max(top).to(tl.float32, bitcast=True).to(tl.float64))
    tl.store(told + 2, tl.sum(total))


@triton.jit
def ones_in(word):
    word -= (word >> 1) & 0x55555555
    word = (word & 0x33333333) + ((word >> 2) & 0x33333333)
    return ((((word + (word >> 4)) & 0x0F0F0F0F) * 0x01010101) >> 24).to(tl.int32)


@triton.jit
def collect(
    source, words, counts, ends, told, indices, values, room, n, ZERO: tl.constexpr, EACH: tl.constexpr,
    WIDE: tl.constexpr,
):  # fmt: skip
    """The marked numbers of WIDE words side by side, EACH words to a tile of `mark`; nothing if there is no room for
    all, or if one is not finite. `source` holds v."""
    part = tl.program_id(0)
    place = part * WIDE + tl.arange(0, WIDE)
    word = tl.load(words + place, mask=place * 32 < n, other=0).to(tl.uint32, bitcast=True)
    tile = part * (WIDE // EACH)
    many = ones_in(word)
    to = tl.load(ends + tile) - tl.load(counts + tile) + tl.cumsum(many, 0) - many
    if (tl.load(told) <= room) & (tl.load(told + 1) < float("inf")):
        while tl.max(word) != 0:
            lowest = word ^ (word & (word - 1))
            at = place * 32 + (lowest.to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 127
            here = word != 0
            tl.store(indices + to, at, mask=here)
            tl.store(values + to, tl.load(source + at, mask=here, other=0.0), mask=here)
            if ZERO:
                tl.store(source + at, tl.zeros((WIDE,), tl.float32), mask=here)
            to += 1
            word &= word - 1
