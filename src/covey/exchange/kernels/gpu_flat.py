# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False
"""Triton: blocks of any size, or one of all. Pieces are measured, then all is coded from the end: what was read last
is still in the cache. With a scale that is not finite nothing is written."""

from __future__ import annotations

import triton
import triton.language as tl

from covey.exchange.kernels.gpu_rows import INFINITE, drawn, inverse, packed, rounded, sized, wanted


@triton.jit
def survey(
    x, r, table, n, block, pieces, PIECE: tl.constexpr, KIND: tl.constexpr, KEEP: tl.constexpr, TILE: tl.constexpr
):
    """Three numbers for a piece of a block. KIND 0: max|v|; 1: squares; 2: max, squares and sum; 3: onebit's sides."""
    part, b = tl.program_id(0), tl.program_id(1)
    low = b * block + part * PIECE
    end = tl.minimum((b + 1) * block, n)
    top = tl.zeros((TILE,), tl.int32)
    first = tl.zeros((TILE,), tl.float64)
    second = tl.zeros((TILE,), tl.float64)
    for start in range(0, PIECE, TILE):
        at = low + start + tl.arange(0, TILE)
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
    place = table + (b * pieces + part) * 3
    if KIND == 3:
        tl.store(place, tl.sum(top).to(tl.float64))
    else:
        tl.store(place, tl.max(top).to(tl.float32, bitcast=True).to(tl.float64))
    tl.store(place + 1, tl.sum(first))
    tl.store(place + 2, tl.sum(second))


@triton.jit
def settle(
    table, scale, n, block, pieces, clip, KIND: tl.constexpr, CLIP: tl.constexpr, WIDE: tl.constexpr
):  # fmt: skip
    """From the pieces of a block to its scale: a level for each side, a maximum, a norm or a limit."""
    b = tl.program_id(0)
    filled = tl.minimum(block, n - b * block).to(tl.float64)
    at = tl.arange(0, WIDE)
    place = table + (b * pieces + at) * 3
    top = tl.load(place, mask=at < pieces, other=0.0)
    squares = tl.sum(tl.load(place + 1, mask=at < pieces, other=0.0))
    total = tl.sum(tl.load(place + 2, mask=at < pieces, other=0.0))
    if KIND == 3:
        below = tl.sum(top)
        tl.store(scale + 2 * b, (squares / tl.maximum(filled - below, 1.0)).to(tl.float32))
        tl.store(scale + 2 * b + 1, (total / tl.maximum(below, 1.0)).to(tl.float32))
    elif KIND == 1:
        tl.store(scale + b, tl.sqrt(squares).to(tl.float32))
    else:
        limit = (tl.max(tl.where(top != top, 0.0, top)) + tl.sum(top * 0.0)).to(tl.float32)  # NaN if one is not finite
        if CLIP:
            mean = total / filled
            width = (clip * tl.sqrt(tl.maximum(squares / filled - mean * mean, 0.0))).to(tl.float32)
            limit = tl.where(sized(limit) < INFINITE, tl.minimum(limit, width), limit)
        tl.store(scale + b, limit)


@triton.jit
def from_the_end(n, TILE: tl.constexpr):
    first = (tl.num_programs(0) - 1 - tl.program_id(0)) * TILE
    at = first + tl.arange(0, TILE)
    return first, at, at < n


@triton.jit(do_not_specialize=["one", "two"])
def linear_flat(
    x, r, q, scale, n, block, levels, one, two, CHANCE: tl.constexpr, KEEP: tl.constexpr, ONE: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    _, at, mask = from_the_end(n, TILE)
    v = wanted(x, r, at, mask, KEEP)
    if ONE:
        top = tl.load(scale)
    else:
        top = tl.load(scale + at // block, mask=mask, other=0.0)
    code = rounded(v * inverse(levels, top), at, one, two, CHANCE)
    code = tl.minimum(tl.maximum(code, -levels), levels)
    mask &= sized(top) < INFINITE
    tl.store(q + at, code.to(q.dtype.element_ty), mask=mask)
    if KEEP:
        tl.store(r + at, v - code * tl.math.div_rn(top, levels + top * 0.0), mask=mask)


@triton.jit
def onebit_flat(x, r, out, scale, n, block, KEEP: tl.constexpr, ONE: tl.constexpr, TILE: tl.constexpr):
    first, at, mask = from_the_end(n, TILE)
    v = wanted(x, r, at, mask, KEEP)
    if ONE:
        up, down = tl.load(scale), tl.load(scale + 1)
    else:
        up = tl.load(scale + 2 * (at // block), mask=mask, other=0.0)
        down = tl.load(scale + 2 * (at // block) + 1, mask=mask, other=0.0)
    high = (v >= 0.0) & mask
    packed(high.to(tl.int32), out, first, n, 1, TILE)
    if KEEP:
        fine = (sized(up) < INFINITE) & (sized(down) < INFINITE)
        tl.store(r + at, v - tl.where(high, up, down), mask=mask & fine)


@triton.jit(do_not_specialize=["one", "two"])
def terngrad_flat(
    x, r, out, limits, scales, n, block, one, two, KEEP: tl.constexpr, ONE: tl.constexpr, TILE: tl.constexpr
):
    first, at, mask = from_the_end(n, TILE)
    v = wanted(x, r, at, mask, KEEP)
    if ONE:
        limit, scale = tl.load(limits), tl.load(scales)
    else:
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
