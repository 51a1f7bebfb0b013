"""Loops of the codecs that send one or two bits a number, for numba. As in `cpu_levels`."""

from __future__ import annotations

from typing import Any

import numpy as np

from covey.exchange.kernels.compiled import compiled
from covey.exchange.kernels.cpu_packing import PIECE, eights, ones, quads
from covey.exchange.kernels.cpu_stats import INFINITE, MOMENTS, PEAK, SIDES, F, U, W, at, mix, peak, stats


@compiled
def means(table: Any, count: int, block: int, levels: Any, first: int, last: int) -> Any:
    fine = True
    for b in range(first, last):
        others = table[b, 2]
        above = min(block, count - b * block) - others
        levels[b, 0] = F(table[b, 0] / above) if above > 0 else F(0)
        levels[b, 1] = F(table[b, 1] / others) if others > 0 else F(0)
        fine &= np.isfinite(levels[b, 0]) and np.isfinite(levels[b, 1])
    return fine


@compiled
def onebit_tiles(
    x: Any, r: Any, bits: Any, block: int, tile: int, known: bool, table: Any, levels: Any, bad: Any,
    start: int, stop: int,
) -> None:  # fmt: skip
    flags = np.empty(tile + 8, np.uint8)
    for low in range(start, stop, tile):
        end = min(low + tile, stop)
        first, last = low // block, (end - 1) // block + 1
        if not known:
            stats(SIDES, x[low:end], None if r is None else r[low:end], block, table, first, last)
            if not means(table, x.size, block, levels, first, last):
                bad[low // tile] = 1
                continue
        for b in range(first, last):
            a, e = max(low, b * block), min(end, (b + 1) * block)
            xs, fs, up, down = x[a:e], flags[a - low : e - low], levels[b, 0], levels[b, 1]
            rs = None if r is None else r[a:e]
            for i in range(xs.size):
                v = F(at(xs, rs, i))
                fs[i] = v >= F(0)
                if rs is not None:
                    rs[i] = F(v - (up if v >= F(0) else down))
        eights(flags, bits[low // 8 : (end + 7) // 8], end - low)


@compiled
def twobit_tiles(x: Any, r: Any, packed: Any, tile: int, threshold: Any, bad: Any, start: int, stop: int) -> None:
    codes = np.empty(tile + 8, np.uint8)
    for low in range(start, stop, tile):
        xs = x[low : min(low + tile, stop)]
        rs = None if r is None else r[low : min(low + tile, stop)]
        if peak(xs, rs) >= U(INFINITE):
            bad[low // tile] = 1
            continue
        for i in range(xs.size):
            v = F(at(xs, rs, i))
            bits = v.view(U)
            reach = abs(v) >= threshold
            codes[i] = (U(3) - (bits >> U(31))) if reach else U(0)
            if rs is not None:
                rs[i] = F(v - (F(np.copysign(threshold, v)) if reach else F(0)))
        quads(codes, packed[low // 4 : (low + xs.size + 3) // 4], xs.size)


@compiled
def limits(table: Any, count: int, block: int, clip: Any, limit: Any, first: int, last: int) -> Any:
    """max|v|, or `clip` standard deviations."""
    fine = True
    for b in range(first, last):
        limit[b] = F(table[b, 0])
        if clip > 0:
            many = min(block, count - b * block)
            mean = table[b, 2] / many
            limit[b] = min(limit[b], F(clip * np.sqrt(max(table[b, 1] / many - mean * mean, 0.0))))
        fine &= np.isfinite(table[b, 0]) and np.isfinite(limit[b])
    return fine


@compiled
def terngrad_tiles(
    x: Any, r: Any, packed: Any, block: int, tile: int, key: Any, clip: Any, known: bool, table: Any, limit: Any,
    scale: Any, bad: Any, start: int, stop: int,
) -> None:  # fmt: skip
    codes = np.empty(tile + 8, np.uint8)
    for low in range(start, stop, tile):
        end = min(low + tile, stop)
        first, last = low // block, (end - 1) // block + 1
        if not known:
            kind = MOMENTS if clip > 0 else PEAK
            stats(kind, x[low:end], None if r is None else r[low:end], block, table, first, last)
            if not limits(table, x.size, block, clip, limit, first, last):
                bad[low // tile] = 1
                continue
        for b in range(first, last):
            a, e = max(low, b * block), min(end, (b + 1) * block)
            rest = None if r is None else r[a:e]
            ternary(x[a:e], rest, codes[a - low : e - low], limit[b], scale[b], U(a), key)
        quads(codes, packed[low // 4 : (end + 3) // 4], end - low)


@compiled
def ternary(x: Any, r: Any, codes: Any, limit: Any, scale: Any, base: Any, key: Any) -> None:
    """One block: the sign with probability min(|v|, limit) / scale."""
    for i in range(x.size):
        v = F(at(x, r, i))
        size = abs(v)
        size = limit if size > limit else size
        u = F(F(W(mix(U(base + U(i)), key) >> U(8))) * F(2**-24))
        sent = F(u * scale) < size
        codes[i] = (U(3) - (v.view(U) >> U(31))) if sent else U(0)
        if r is not None:
            r[i] = F(v - (F(np.copysign(scale, v)) if sent else F(0)))


@compiled
def onebit_back(bits: Any, levels: Any, block: int, out: Any, alpha: Any, start: int, stop: int) -> None:
    flags = np.empty(PIECE, np.uint8)
    for low in range(start, stop, PIECE):
        end = min(low + PIECE, stop)
        ones(bits[low // 8 : (end + 7) // 8], flags)
        for b in range(low // block, (end - 1) // block + 1):
            a, e = max(low, b * block), min(end, (b + 1) * block)
            up, down, os, fs = levels[b, 0], levels[b, 1], out[a:e], flags[a - low : e - low]
            for i in range(os.size):
                dec = up if fs[i] != 0 else down
                os[i] = dec if alpha is None else F(os[i] + F(alpha * dec))


@compiled
def ternary_back(codes: Any, scale: Any, block: int, out: Any, alpha: Any, start: int, stop: int) -> None:
    apart = np.empty(PIECE, np.uint8)
    words = apart.view(U)
    for low in range(start, stop, PIECE):
        end = min(low + PIECE, stop)
        packed = codes[low // 4 : (end + 3) // 4]
        for j in range(packed.size):
            c = U(packed[j])
            words[j] = (c >> U(6)) | ((c & U(48)) << U(4)) | ((c & U(12)) << U(14)) | ((c & U(3)) << U(24))
        for b in range(low // block, (end - 1) // block + 1):
            a, e = max(low, b * block), min(end, (b + 1) * block)
            up, os, cs = scale[b], out[a:e], apart[a - low : e - low]
            for i in range(os.size):
                dec = up if cs[i] == 3 else (F(-up) if cs[i] == 2 else F(0))
                os[i] = dec if alpha is None else F(os[i] + F(alpha * dec))
