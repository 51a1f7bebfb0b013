"""Loops of the codecs that round to a grid, for numba. Each works on the tiles between two numbers of the tensor.

`r` (residual), `key` (of chance) and `alpha` may be None; numba compiles each case by itself. A tile that holds NaN or
infinity is left alone and noted in `bad`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from covey.exchange.kernels.compiled import compiled
from covey.exchange.kernels.cpu_packing import PIECE, eights, ones
from covey.exchange.kernels.cpu_stats import INFINITE, NORM, F, U, W, at, mix, peak, stats


@compiled
def rounded(t: Any, i: Any, key: Any) -> Any:
    if key is None:
        return F(np.rint(t))
    low = F(np.floor(t))
    return F(low + F(1)) if F(F(W(mix(i, key) >> U(8))) * F(2**-24)) < F(t - low) else low


@compiled
def tops(kind: int, table: Any, levels: float, inv: Any, top: Any, first: int, last: int) -> Any:
    """From the statistics of blocks: their scale, and what brings numbers onto the grid; are all finite?"""
    fine = True
    for b in range(first, last):
        top[b] = F(np.sqrt(table[b, 1])) if kind == NORM else F(table[b, 0])
        fine &= np.isfinite(top[b])
        inv[b] = F(F(levels) / top[b]) if top[b] > F(0) else F(0)
        if not np.isfinite(inv[b]):
            inv[b] = F(0)
    return fine


@compiled
def linear(x: Any, r: Any, q: Any, inv: Any, step: Any, shift: Any, high: Any, base: Any, key: Any) -> None:
    """One block: q = round(v * inv + shift), within 0 or -high and high; dec = (q - shift) * step."""
    low = F(0) if shift > F(0) else F(-high)
    for i in range(x.size):
        v = F(at(x, r, i))
        code = rounded(F(F(v * inv) + shift), U(base + U(i)), key)
        code = low if code < low else code
        code = high if code > high else code
        q[i] = W(code)
        if r is not None:
            r[i] = F(v - F(F(code - shift) * step))


@compiled
def linear_tiles(
    x: Any, r: Any, q: Any, block: int, tile: int, kind: int, levels: Any, shift: Any, high: Any, key: Any,
    known: bool, table: Any, inv: Any, top: Any, bad: Any, start: int, stop: int,
) -> None:  # fmt: skip
    """Statistics (unless known), then codes, tile by tile: the second look at a tile finds it in the cache."""
    for low in range(start, stop, tile):
        end = min(low + tile, stop)
        first, last = low // block, (end - 1) // block + 1
        if not known:
            stats(kind, x[low:end], None if r is None else r[low:end], block, table, first, last)
            if not tops(kind, table, levels, inv, top, first, last):
                bad[low // tile] = 1
                continue
        for b in range(first, last):
            a, e = max(low, b * block), min(end, (b + 1) * block)
            rest = None if r is None else r[a:e]
            linear(x[a:e], rest, q[a:e], inv[b], F(top[b] / F(levels)), shift, high, U(a), key)


@compiled
def fixed_tiles(x: Any, r: Any, q: Any, tile: int, scale: Any, key: Any, bad: Any, start: int, stop: int) -> None:
    """The same grid everywhere, which ends at -32768 and 32767."""
    for low in range(start, stop, tile):
        xs, qs = x[low : min(low + tile, stop)], q[low : min(low + tile, stop)]
        rs = None if r is None else r[low : min(low + tile, stop)]
        if peak(xs, rs) >= U(INFINITE):
            bad[low // tile] = 1
            continue
        for i in range(xs.size):
            v = F(at(xs, rs, i))
            t = F(v * scale)
            t = F(-32768) if t < F(-32768) else t
            t = F(32767) if t > F(32767) else t
            code = rounded(t, U(U(low) + U(i)), key)
            qs[i] = W(code)
            if rs is not None:
                rs[i] = F(v - F(code * F(F(1) / scale)))


@compiled
def natural_tiles(
    x: Any, r: Any, exponents: Any, signs: Any, tile: int, key: Any, bad: Any, start: int, stop: int
) -> None:
    negative = np.empty(tile + 8, np.uint8)
    for low in range(start, stop, tile):
        xs, es = x[low : min(low + tile, stop)], exponents[low : min(low + tile, stop)]
        rs = None if r is None else r[low : min(low + tile, stop)]
        if peak(xs, rs) >= U(INFINITE):
            bad[low // tile] = 1
            continue
        for i in range(xs.size):
            v = F(at(xs, rs, i))
            bits = v.view(U)
            code = U(U(U(bits & U(0x7FFFFFFF)) + U(mix(U(U(low) + U(i)), key) >> U(9))) >> U(23))
            code = U(254) if code > U(254) else code
            es[i] = code
            negative[i] = bits >> U(31)
            if rs is not None:
                rs[i] = F(v - U(U(code << U(23)) | U(bits & U(0x80000000))).view(F))
        eights(negative, signs[low // 8 : (low + xs.size + 7) // 8], xs.size)


@compiled
def linear_back(q: Any, step: Any, shift: Any, block: int, out: Any, alpha: Any, start: int, stop: int) -> None:
    for b in range(start // block, (stop - 1) // block + 1):
        a, e = max(start, b * block), min(stop, (b + 1) * block)
        qs, os = q[a:e], out[a:e]
        for i in range(qs.size):
            dec = F(F(F(qs[i]) - shift) * step[b])
            os[i] = dec if alpha is None else F(os[i] + F(alpha * dec))


@compiled
def natural_back(exponents: Any, signs: Any, out: Any, alpha: Any, start: int, stop: int) -> None:
    flags = np.empty(PIECE, np.uint8)
    for low in range(start, stop, PIECE):
        es, os = exponents[low : min(low + PIECE, stop)], out[low : min(low + PIECE, stop)]
        ones(signs[low // 8 : (low + os.size + 7) // 8], flags)
        for i in range(os.size):
            size = U(U(es[i]) << U(23))
            dec = U(size | (U(0x80000000) if flags[i] != 0 else U(0))).view(F)
            os[i] = dec if alpha is None else F(os[i] + F(alpha * dec))
