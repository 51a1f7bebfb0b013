# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False
"""Triton: one block of all numbers, measured and coded in one launch.

Programs measure the tiles that are theirs, wait for each other, and code the same tiles from the end: what was read
last is still in the cache. With a scale that is not finite nothing is written.
"""

from __future__ import annotations

import triton
import triton.language as tl

from covey.exchange.kernels.gpu.flat import measure, settled
from covey.exchange.kernels.gpu.launch import REFUSAL, TABLE, leave, meet, share, tell
from covey.exchange.kernels.gpu.rows import INFINITE, drawn, inverse, packed, rounded, sized, wanted

FOUND = tl.constexpr(32 + TABLE)  # in the workspace
LINEAR, ONEBIT, TERNARY = 0, 1, 2
ONE_BIT, LEVELS = tl.constexpr(ONEBIT), tl.constexpr(LINEAR)


@triton.jit(do_not_specialize=["turn", "tiles", "one", "two"])
def whole(
    x, r, out, scale, shared, work, told, turn, n, tiles, levels, clip, one, two, CODE: tl.constexpr,
    KIND: tl.constexpr, CHANCE: tl.constexpr, CLIP: tl.constexpr, SHARED: tl.constexpr, STEP: tl.constexpr,
    KEEP: tl.constexpr, TILE: tl.constexpr, ALL: tl.constexpr,
):  # fmt: skip
    """`scale` gets two levels, a limit, or the highest of evenly spaced levels or one step between them (STEP)."""
    program, programs = tl.program_id(0), tl.num_programs(0)
    first, last = share(tiles, program, programs)
    table = (work + FOUND).to(tl.pointer_type(tl.float64), bitcast=True)
    measure(x, r, table + 3 * program, first * TILE, tl.minimum(last * TILE, n), KIND, KEEP, TILE)
    meet(work, programs)
    filled = (tiles * 0 + n).to(tl.float64)  # n is a constant if it is 1
    up, down = settled(table, programs, filled, clip, KIND, CLIP, ALL)
    step = tl.math.div_rn(up, levels + up * 0.0)
    fine = (sized(up) < INFINITE) & (sized(down) < INFINITE)
    if program == 0:
        tell(told, turn, tl.where(fine, 0, REFUSAL))
        if CODE == ONE_BIT:
            tl.store(scale, up)
            tl.store(scale + 1, down)
        else:
            tl.store(scale, step if STEP else up)
    wide = tl.load(shared) if SHARED else up
    inv = inverse(levels, up)
    for back in range(tl.where(fine, last - first, 0)):
        begin = (last - 1 - back) * TILE
        at = begin + tl.arange(0, TILE)
        mask = at < n
        v = wanted(x, r, at, mask, KEEP)
        if CODE == LEVELS:
            code = rounded(v * inv, at, one, two, CHANCE)
            code = tl.minimum(tl.maximum(code, -levels), levels)
            tl.store(out + at, code.to(out.dtype.element_ty), mask=mask)
            dec = code * step
        else:
            if CODE == ONE_BIT:
                high = (v >= 0.0) & mask
                packed(high.to(tl.int32), out, begin, n, 1, TILE)
                dec = tl.where(high, up, down)
            else:
                code, dec = drawn(v, up, wide, at, mask, one, two)
                packed(code, out, begin, n, 2, TILE)
        if KEEP:
            tl.store(r + at, v - dec, mask=mask)
    leave(work, 2 * programs, 2)
