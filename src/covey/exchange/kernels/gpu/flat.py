# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False
"""Triton: several blocks of any size. Pieces are measured, then all is coded from the end: what was read last is still
in the cache. With a scale that is not finite nothing is written. What decodes is for all sizes of blocks."""

from __future__ import annotations

import triton
import triton.language as tl

from covey.exchange.kernels.gpu.rows import INFINITE, drawn, inverse, packed, rounded, sized, wanted


@triton.jit
def measure(x, r, place, low, end, KIND: tl.constexpr, KEEP: tl.constexpr, TILE: tl.constexpr):
    """Three numbers for a piece of a block. KIND 0: max|v|; 1: squares; 2: max, squares and sum; 3: onebit's sides."""
    top = tl.zeros((TILE,), tl.int32)
    first = tl.zeros((TILE,), tl.float64)
    second = tl.zeros((TILE,), tl.float64)
    for start in range(low, end, TILE):
        at = start + tl.arange(0, TILE)
        v = wanted(x, r, at, at < end, KEEP)
        if KIND == 0 or KIND == 2:
            top = tl.maximum(top, sized(v))
        if KIND == 1 or KIND == 2:
            first += v.to(tl.float64) * v.to(tl.float64)
        if KIND == 2:
            second += v.to(tl.float64)
        if KIND == 3:
            high = v >= 0.0
            first += tl.where(high, v, 0.0).to(tl.float64)
            second += tl.where(high, 0.0, v).to(tl.float64)
            top += tl.where(high, 0, 1)
    if KIND == 3:
        tl.store(place, tl.sum(top).to(tl.float64))
    else:
        tl.store(place, tl.max(top).to(tl.float32, bitcast=True).to(tl.float64))
    tl.store(place + 1, tl.sum(first))
    tl.store(place + 2, tl.sum(second))


@triton.jit
def settled(table, pieces, filled, clip, KIND: tl.constexpr, CLIP: tl.constexpr, WIDE: tl.constexpr):
    """From the pieces of a block to its scale: a level for each side, or twice a maximum, a norm or a limit."""
    at = tl.arange(0, WIDE)
    place = table + at * 3
    top = tl.load(place, mask=at < pieces, other=0.0)
    first = tl.sum(tl.load(place + 1, mask=at < pieces, other=0.0))
    second = tl.sum(tl.load(place + 2, mask=at < pieces, other=0.0))
    if KIND == 3:
        below = tl.sum(top)
        up = (first / tl.maximum(filled - below, 1.0)).to(tl.float32)
        down = (second / tl.maximum(below, 1.0)).to(tl.float32)
    else:
        if KIND == 1:
            up = tl.sqrt(first).to(tl.float32)
        else:
            up = (tl.max(tl.where(top != top, 0.0, top)) + tl.sum(top * 0.0)).to(tl.float32)  # NaN if one is not finite
            if CLIP:
                mean = second / filled
                width = (clip * tl.sqrt(tl.maximum(first / filled - mean * mean, 0.0))).to(tl.float32)
                up = tl.where(sized(up) < INFINITE, tl.minimum(up, width), up)
        down = up
    return up, down


@triton.jit
def survey(
    x, r, table, n, block, pieces, PIECE: tl.constexpr, KIND: tl.constexpr, KEEP: tl.constexpr, TILE: tl.constexpr
):
    part, b = tl.program_id(0), tl.program_id(1)
    low = b * block + part * PIECE
    end = tl.minimum(low + PIECE, tl.minimum((b + 1) * block, n))
    measure(x, r, table + (b * pieces + part) * 3, low, end, KIND, KEEP, TILE)


@triton.jit
def settle(
    table, scale, n, block, pieces, clip, KIND: tl.constexpr, CLIP: tl.constexpr, WIDE: tl.constexpr
):  # fmt: skip
    b = tl.program_id(0)
    filled = tl.minimum(block, n - b * block).to(tl.float64)
    up, down = settled(table + b * pieces * 3, pieces, filled, clip, KIND, CLIP, WIDE)
    if KIND == 3:
        tl.store(scale + 2 * b, up)
        tl.store(scale + 2 * b + 1, down)
    else:
        tl.store(scale + b, up)


@triton.jit
def from_the_end(n, TILE: tl.constexpr):
    first = (tl.num_programs(0) - 1 - tl.program_id(0)) * TILE
    at = first + tl.arange(0, TILE)
    return first, at, at < n


@triton.jit(do_not_specialize=["one", "two"])
def linear_flat(
    x, r, q, scale, n, block, levels, one, two, CHANCE: tl.constexpr, KEEP: tl.constexpr, TILE: tl.constexpr
):
    _, at, mask = from_the_end(n, TILE)
    v = wanted(x, r, at, mask, KEEP)
    top = tl.load(scale + at // block, mask=mask, other=0.0)
    code = rounded(v * inverse(levels, top), at, one, two, CHANCE)
    code = tl.minimum(tl.maximum(code, -levels), levels)
    mask &= sized(top) < INFINITE
    tl.store(q + at, code.to(q.dtype.element_ty), mask=mask)
    if KEEP:
        tl.store(r + at, v - code * tl.math.div_rn(top, levels + top * 0.0), mask=mask)


@triton.jit
def onebit_flat(x, r, out, scale, n, block, KEEP: tl.constexpr, TILE: tl.constexpr):
    first, at, mask = from_the_end(n, TILE)
    v = wanted(x, r, at, mask, KEEP)
    up = tl.load(scale + 2 * (at // block), mask=mask, other=0.0)
    down = tl.load(scale + 2 * (at // block) + 1, mask=mask, other=0.0)
    high = (v >= 0.0) & mask
    packed(high.to(tl.int32), out, first, n, 1, TILE)
    if KEEP:
        fine = (sized(up) < INFINITE) & (sized(down) < INFINITE)
        tl.store(r + at, v - tl.where(high, up, down), mask=mask & fine)


@triton.jit(do_not_specialize=["one", "two"])
def terngrad_flat(x, r, out, limits, scales, n, block, one, two, KEEP: tl.constexpr, TILE: tl.constexpr):
    first, at, mask = from_the_end(n, TILE)
    v = wanted(x, r, at, mask, KEEP)
    limit = tl.load(limits + at // block, mask=mask, other=0.0)
    scale = tl.load(scales + at // block, mask=mask, other=0.0)
    code, dec = drawn(v, limit, scale, at, mask, one, two)
    packed(code, out, first, n, 2, TILE)
    if KEEP:
        tl.store(r + at, v - dec, mask=mask & (sized(limit) < INFINITE))


@triton.jit
def linear_back(q, step, out, n, block, alpha, ADD: tl.constexpr, ONE: tl.constexpr, TILE: tl.constexpr):
    at = tl.program_id(0) * TILE + tl.arange(0, TILE)
    mask = at < n
    width = tl.load(step) if ONE else tl.load(step + at // block, mask=mask, other=0.0)
    put(out, at, mask, tl.load(q + at, mask=mask, other=0).to(tl.float32) * width, alpha, ADD)


@triton.jit
def onebit_back(bits, scale, out, n, block, alpha, ADD: tl.constexpr, ONE: tl.constexpr, TILE: tl.constexpr):
    at = tl.program_id(0) * TILE + tl.arange(0, TILE)
    mask = at < n
    b = at * 0 if ONE else at // block
    up = tl.load(scale + 2 * b, mask=mask, other=0.0)
    down = tl.load(scale + 2 * b + 1, mask=mask, other=0.0)
    byte = tl.load(bits + at // 8, mask=mask, other=0).to(tl.int32)
    put(out, at, mask, tl.where((byte >> (at % 8)) & 1 != 0, up, down), alpha, ADD)


@triton.jit
def ternary_back(codes, scale, out, n, block, alpha, ADD: tl.constexpr, ONE: tl.constexpr, TILE: tl.constexpr):
    at = tl.program_id(0) * TILE + tl.arange(0, TILE)
    mask = at < n
    width = tl.load(scale) if ONE else tl.load(scale + at // block, mask=mask, other=0.0)
    code = (tl.load(codes + at // 4, mask=mask, other=0).to(tl.int32) >> (6 - 2 * (at % 4))) & 3
    put(out, at, mask, tl.where(code == 3, width, tl.where(code == 2, -width, 0.0)), alpha, ADD)


@triton.jit
def put(out, at, mask, dec, alpha, ADD: tl.constexpr):
    if ADD:
        dec = tl.load(out + at, mask=mask, other=0.0) + alpha * dec
    tl.store(out + at, dec, mask=mask)
