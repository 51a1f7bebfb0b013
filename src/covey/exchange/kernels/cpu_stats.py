"""What a codec must know of a block before it can code it. Plain loops that the compiler turns into vectors.

`r` is the residual or None: numba compiles each case by itself.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from covey.exchange.kernels.compiled import compiled, summing

F, W, U = np.float32, np.int32, np.uint32
PEAK, NORM, MOMENTS, SIDES = 0, 1, 2, 3
INFINITE = 0x7F800000


@compiled
def at(x: Any, r: Any, i: int) -> Any:
    """v"""
    if r is None:
        return x[i]
    return F(x[i] + r[i])


@compiled
def mix(i: Any, key: Any) -> Any:
    """The 32 random bits of number i (`chance`)."""
    word = U(U(i) ^ key[0])
    word = U(U(word ^ (word >> U(16))) * U(0x7FEB352D))
    word = U(word + key[1])
    word = U(U(word ^ (word >> U(15))) * U(0x846CA68B))
    return U(word ^ (word >> U(16)))


@compiled
def peak(x: Any, r: Any) -> Any:
    """The bits of max|v|: without the sign floats are ordered as their bits, NaN and infinity on top."""
    top = U(0)
    for i in range(x.size):
        v = F(at(x, r, i))
        top = max(top, U(v.view(U) & U(0x7FFFFFFF)))
    return top


@summing
def squares(x: Any, r: Any) -> Any:
    total = 0.0
    for i in range(x.size):
        v = np.float64(at(x, r, i))
        total += v * v
    return total


@summing
def total(x: Any, r: Any) -> Any:
    whole = 0.0
    for i in range(x.size):
        whole += np.float64(at(x, r, i))
    return whole


@summing
def sides(x: Any, r: Any) -> Any:
    """Sum of those >= 0, sum of the others, and how many others."""
    above, below, others = F(0), F(0), W(0)
    for i in range(x.size):
        v = F(at(x, r, i))
        mask = W(-1) if v.view(U) > U(0x80000000) else W(0)
        above = F(above + F(W(v.view(W) & ~mask).view(F)))
        below = F(below + F(W(v.view(W) & mask).view(F)))
        others = W(others - mask)
    return above, below, others


@compiled
def stats(kind: int, x: Any, r: Any, block: int, table: Any, first: int, last: int) -> None:
    """A row of three numbers for each block from `first` to `last`; x starts with the block `first`."""
    for b in range(first, last):
        low = (b - first) * block
        part = x[low : low + block]
        rest = None if r is None else r[low : low + block]
        if kind == SIDES:
            above, below, others = F(0), F(0), 0
            for piece in range(0, part.size, 4096):  # float32 sums stay short
                a, o, c = sides(part[piece : piece + 4096], None if rest is None else rest[piece : piece + 4096])
                above, below, others = F(above + a), F(below + o), others + c
            table[b, 0], table[b, 1], table[b, 2] = above, below, others
            continue
        if kind != NORM:
            table[b, 0] = np.float64(U(peak(part, rest)).view(F))
        if kind != PEAK:
            table[b, 1] = squares(part, rest)
        if kind == MOMENTS:
            table[b, 2] = total(part, rest)
