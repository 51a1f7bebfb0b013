# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False
"""Triton: blocks of up to 8192 numbers, several to a program, measured and coded in one pass.

A block that holds NaN or infinity is left alone, and its scale is not finite; the last program tells whether there is
one. WIDE is BLOCK's next power of two.
"""

from __future__ import annotations

import triton
import triton.language as tl

from covey.exchange.kernels.gpu.launch import report

INFINITE = tl.constexpr(0x7F800000)


@triton.jit
def mix(i, one, two):
    """The 32 random bits of number i (`chance`)."""
    word = i.to(tl.uint32) ^ one.to(tl.uint32, bitcast=True)
    word = (word ^ (word >> 16)) * 0x7FEB352D
    word += two.to(tl.uint32, bitcast=True)
    word = (word ^ (word >> 15)) * 0x846CA68B
    return word ^ (word >> 16)


@triton.jit
def uniform(i, one, two):
    return (mix(i, one, two) >> 8).to(tl.int32).to(tl.float32) * 5.9604644775390625e-08  # 2^-24


@triton.jit
def rounded(t, i, one, two, CHANCE: tl.constexpr):
    if CHANCE:
        low = tl.floor(t)
        return tl.where(uniform(i, one, two) < t - low, low + 1.0, low)
    return (t + 12582912.0) - 12582912.0  # 1.5 * 2^23: the sum has no room for a fraction


@triton.jit
def wanted(x, r, at, mask, KEEP: tl.constexpr):
    v = tl.load(x + at, mask=mask, other=0.0)
    if KEEP:
        v += tl.load(r + at, mask=mask, other=0.0)
    return v


@triton.jit
def sized(v):
    """The bits of |v|, which are ordered as the sizes are, NaN and infinity on top."""
    return v.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def inverse(levels, top):
    inv = tl.math.div_rn(levels + top * 0.0, top)
    return tl.where(sized(inv) < INFINITE, inv, 0.0)


@triton.jit
def packed(codes, out, first, n, EACH: tl.constexpr, TILE: tl.constexpr):
    """TILE codes, EACH (1 or 2) bits of a number, into words of 32 from number `first` on."""
    many: tl.constexpr = 32 // EACH
    lane = tl.arange(0, many)
    if EACH == 1:
        shift = lane
    else:
        shift = (lane // 4) * 8 + 6 - (lane % 4) * 2  # the first of four in the high bits of a byte
    words = tl.sum(tl.reshape(codes, (TILE // many, many)) << shift[None, :], axis=1)
    place = first // many + tl.arange(0, TILE // many)
    tl.store(out + place, words, mask=place * many < n)


@triton.jit
def places(n, BLOCK: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, WIDE)
    at = row[:, None] * BLOCK + column[None, :]
    mask = at < n
    if BLOCK != WIDE:
        mask &= (column < BLOCK)[None, :]
    return row, at, mask


@triton.jit(do_not_specialize=["turn", "many", "one", "two"])
def linear_rows(
    x, r, q, scale, work, told, turn, n, many, levels, one, two, NORM: tl.constexpr, CHANCE: tl.constexpr,
    STEP: tl.constexpr, KEEP: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Evenly spaced levels up to max|v| or to the norm; `scale` gets these, or one step."""
    row, at, mask = places(n, BLOCK, WIDE, ROWS)
    v = wanted(x, r, at, mask, KEEP)
    if NORM:
        wide = v.to(tl.float64)
        top = tl.sqrt(tl.sum(wide * wide, axis=1)).to(tl.float32)
    else:
        top = tl.max(sized(v), axis=1).to(tl.float32, bitcast=True)
    fine = sized(top) < INFINITE
    step = tl.math.div_rn(top, levels + top * 0.0)
    tl.store(scale + row, step if STEP else top, mask=row < many)
    code = rounded(v * inverse(levels, top)[:, None], at, one, two, CHANCE)
    code = tl.minimum(tl.maximum(code, -levels), levels)
    mask &= fine[:, None]
    tl.store(q + at, code.to(q.dtype.element_ty), mask=mask)
    if KEEP:
        tl.store(r + at, v - code * step[:, None], mask=mask)
    report(work, told, turn, tl.max((~fine & (row < many)).to(tl.int32)))


@triton.jit(do_not_specialize=["turn", "many"])
def onebit_rows(
    x, r, out, scale, work, told, turn, n, many, PACK: tl.constexpr, KEEP: tl.constexpr, BLOCK: tl.constexpr,
    WIDE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    row, at, mask = places(n, BLOCK, WIDE, ROWS)
    v = wanted(x, r, at, mask, KEEP)
    high = (v >= 0.0) & mask
    above = tl.sum(high.to(tl.int32), axis=1)
    below = tl.sum(mask.to(tl.int32), axis=1) - above
    up = tl.sum(tl.where(high, v, 0.0), axis=1) / tl.maximum(above, 1).to(tl.float32)
    down = tl.sum(tl.where(high, 0.0, v), axis=1) / tl.maximum(below, 1).to(tl.float32)
    tl.store(scale + 2 * row, up, mask=row < many)
    tl.store(scale + 2 * row + 1, down, mask=row < many)
    if PACK:
        packed(high.to(tl.int32), out, tl.program_id(0) * ROWS * BLOCK, n, 1, ROWS * WIDE)
    else:
        tl.store(out + at, high.to(tl.uint8), mask=mask)
    fine = (sized(up) < INFINITE) & (sized(down) < INFINITE)
    if KEEP:
        tl.store(r + at, v - tl.where(high, up[:, None], down[:, None]), mask=mask & fine[:, None])
    report(work, told, turn, tl.max((~fine & (row < many)).to(tl.int32)))


@triton.jit(do_not_specialize=["turn", "many", "one", "two"])
def terngrad_rows(
    x, r, out, scale, shared, work, told, turn, n, many, clip, one, two, CLIP: tl.constexpr, SHARED: tl.constexpr,
    PACK: tl.constexpr, KEEP: tl.constexpr, BLOCK: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    row, at, mask = places(n, BLOCK, WIDE, ROWS)
    v = wanted(x, r, at, mask, KEEP)
    peak = tl.max(sized(v), axis=1)
    limit = peak.to(tl.float32, bitcast=True)
    if CLIP:
        filled = tl.sum(mask.to(tl.float32), axis=1)
        unit = v * inverse(1.0, limit)[:, None]  # within 1, so that no square is lost
        gaps = tl.where(mask, unit - (tl.sum(unit, axis=1) / filled)[:, None], 0.0)
        spread = tl.sqrt(tl.sum(gaps * gaps, axis=1) / filled)
        limit = tl.where(peak < INFINITE, limit * tl.minimum(clip * spread, 1.0), limit)
    tl.store(scale + row, limit, mask=row < many)
    wide_scale = limit
    if SHARED:
        wide_scale = tl.load(shared + row, mask=row < many, other=0.0)
    code, dec = drawn(v, limit[:, None], wide_scale[:, None], at, mask, one, two)
    if PACK:
        packed(code, out, tl.program_id(0) * ROWS * BLOCK, n, 2, ROWS * WIDE)
    else:
        tl.store(out + at, code.to(tl.uint8), mask=mask)
    if KEEP:
        tl.store(r + at, v - dec, mask=mask & (peak < INFINITE)[:, None])
    report(work, told, turn, tl.max(((sized(limit) >= INFINITE) & (row < many)).to(tl.int32)))


@triton.jit
def drawn(v, limit, scale, at, mask, one, two):
    """The sign with probability min(|v|, limit) / scale, as the codes 3 and 2, and what they stand for."""
    size = tl.minimum(tl.abs(v), limit)
    sent = (uniform(at, one, two) * scale < size) & mask
    code = tl.where(sent, tl.where(v < 0.0, 2, 3), 0)
    return code, tl.where(sent, tl.where(v < 0.0, -scale, scale), 0.0)


@triton.jit
def pack_codes(codes, out, n, EACH: tl.constexpr, TILE: tl.constexpr):
    """From a byte for each number, where blocks end inside of words."""
    at = tl.program_id(0) * TILE + tl.arange(0, TILE)
    packed(tl.load(codes + at, mask=at < n, other=0).to(tl.int32), out, tl.program_id(0) * TILE, n, EACH, TILE)
