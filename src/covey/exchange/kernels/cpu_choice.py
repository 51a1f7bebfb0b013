"""Loops that choose numbers by their size, for numba."""

from __future__ import annotations

from typing import Any

import numpy as np

from covey.exchange.kernels.compiled import compiled, summing
from covey.exchange.kernels.cpu_stats import INFINITE, F, U, at, mix

TILE = 4096


@summing
def measured(x: Any, r: Any, v: Any, reach: Any, bits: Any) -> Any:
    """v, which of them reach the threshold (given as bits), the bits of the largest, and the sum of sizes."""
    top, total = U(0), F(0)
    for i in range(x.size):
        value = F(at(x, r, i))
        v[i] = value
        size = U(value.view(U) & U(0x7FFFFFFF))
        reach[i] = size >= bits
        top = max(top, size)
        total = F(total + U(size).view(F))
    return top, total


@compiled
def grown(array: Any, size: int) -> Any:
    more = np.empty(max(size, array.size * 2), array.dtype)
    more[: array.size] = array
    return more


@compiled
def gather(x: Any, r: Any, bits: Any, zero: bool, bad: Any, start: int, stop: int) -> Any:
    """Indices and values of all that reach the threshold; v goes to the residual, with 0 there if `zero`."""
    v, reach = np.empty(TILE, F), np.zeros(TILE, np.uint8)
    words = reach.view(np.uint64)
    indices, values = np.empty(2 * TILE, np.int32), np.empty(2 * TILE, F)
    found, highest, whole = 0, U(0), 0.0
    for low in range(start, stop, TILE):
        xs = x[low : min(low + TILE, stop)]
        rs = None if r is None else r[low : min(low + TILE, stop)]
        if xs.size < TILE:
            reach[:] = 0
        top, total = measured(xs, rs, v, reach, bits)
        if top >= U(INFINITE):
            bad[low // TILE] = 1
            continue
        highest, whole = max(highest, top), whole + total
        if rs is not None:
            rs[:] = v[: xs.size]
        need = found + xs.size + 8  # the last group of eight may look past the end
        if need > indices.size:
            indices, values = grown(indices, need), grown(values, need)
        for j in range((xs.size + 7) // 8):
            if words[j] == 0:
                continue
            for i in range(8 * j, 8 * j + 8):
                indices[found], values[found] = low + i, v[i]  # kept if it counts, else written over
                found += reach[i]
                if rs is not None and zero and reach[i]:
                    rs[i] = F(0)
    return indices[:found], values[:found], highest, whole


@compiled
def sampled(x: Any, r: Any, many: int, key: Any) -> Any:
    """The sizes of one number from each of `many` stretches."""
    sizes, stretch = np.empty(many, F), x.size // many
    for i in range(many):
        sizes[i] = abs(F(at(x, r, i * stretch + (mix(i, key) >> U(8)) % stretch)))
    return sizes


@compiled
def tally(values: Any, upper: Any, lower: Any) -> Any:
    """How many sizes reach the upper limit, and how many lie between."""
    sure, between = 0, 0
    for i in range(values.size):
        size = U(F(values[i]).view(U) & U(0x7FFFFFFF))
        sure += size >= upper
        between += (size >= lower) & (size < upper)
    return sure, between


@compiled
def hand_out(
    indices: Any, values: Any, r: Any, upper: Any, lower: Any, start: int, need: int, out: Any, numbers: Any
) -> None:
    """All that reach the upper limit, and `need` in a row of those between, from the `start`-th on."""
    passed, found = 0, 0
    for i in range(values.size):
        size = U(F(values[i]).view(U) & U(0x7FFFFFFF))
        take = size >= upper
        if size >= lower and not take:
            take = start <= passed < start + need
            passed += 1
        if take:
            out[found], numbers[found] = indices[i], values[i]
            found += 1
            if r is not None:
                r[indices[i]] = F(0)
