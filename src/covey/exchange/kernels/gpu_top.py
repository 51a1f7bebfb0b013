# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False
"""Triton: the k largest among candidates, without waiting for the device in between.

A sample gives a size that somewhat more than k numbers reach; a radix select over those finds the k-th; from it follow
two limits: all that reach the upper count, and of those between both a run.
"""

from __future__ import annotations

import triton
import triton.language as tl

from covey.exchange.kernels.gpu_rows import mix, sized, wanted

FIRST, NEXT = tl.constexpr(2048), tl.constexpr(1024)  # 11, 10 and 10 bits make the 31 of a size


@triton.jit(do_not_specialize=["rank", "one", "two"])
def sample_floor(x, r, floor, n, rank, one, two, KEEP: tl.constexpr, SAMPLE: tl.constexpr):
    """About the rank-th largest of a sample, one from each of SAMPLE stretches: its first 16 bits."""
    lane = tl.arange(0, SAMPLE)
    stretch = n // SAMPLE
    at = lane * stretch + (mix(lane, one, two) >> 8).to(tl.int32) % stretch
    size = sized(wanted(x, r, at, lane >= 0, KEEP))
    found = rank * 0
    for step in range(16):
        tried = found | (1 << (30 - step))
        found = tl.where(tl.sum((size >= tried).to(tl.int32)) >= rank, tried, found)
    tl.store(floor, found)


@triton.jit
def pick(table, rank, BINS: tl.constexpr):
    """The digit in which the rank-th largest lies, and its rank there."""
    lane = tl.arange(0, BINS)
    here = tl.load(table + lane)
    from_here = tl.sum(here) - tl.cumsum(here, 0) + here
    digit = tl.max(tl.where(from_here >= rank, lane, 0))
    above = tl.sum(tl.where(lane > digit, here, 0))
    return digit, rank - above


@triton.jit(do_not_specialize=["rank"])
def histogram(values, told, table, rank, room, ROUND: tl.constexpr, TILE: tl.constexpr):
    """How often each digit occurs among the candidates that share the digits found before."""
    at = tl.program_id(0) * TILE + tl.arange(0, TILE)
    here = (at < tl.load(told)) & (at < room)
    size = sized(tl.load(values + at, mask=here, other=0.0))
    bins: tl.constexpr = FIRST if ROUND == 0 else NEXT
    out = table
    digit = size >> 20
    if ROUND > 0:
        first, rank = pick(table, rank, FIRST)
        out = table + FIRST
        if ROUND == 1:
            here &= digit == first
            digit = (size >> 10) & 1023
        else:
            second, rank = pick(out, rank, NEXT)
            here &= (size >> 10) == (first << 10 | second)
            digit = size & 1023
            out += NEXT
    counted = tl.histogram(digit, bins, mask=here)
    lane = tl.arange(0, bins)
    tl.atomic_add(out + lane, counted, mask=counted > 0)


@triton.jit(do_not_specialize=["k", "word"])
def verdict(
    table, told, floor, limits, n, k, word, room, ROUNDS: tl.constexpr
):  # fmt: skip
    """The two limits, as bits, and `word` to draw the run with (0: the first of them).

    ROUNDS 0 is the exact k largest: those above the k-th, then its equals. Else by bisection between mean and maximum
    (Shi et al. 2021): whether more than k reach a threshold is whether the next after the k largest does.
    """
    rank = k + (1 if ROUNDS > 0 else 0)
    first, rank = pick(table, rank, FIRST)
    second, rank = pick(table + FIRST, rank, NEXT)
    third, rank = pick(table + FIRST + NEXT, rank, NEXT)
    found = first << 20 | second << 10 | third
    upper, lower = found + 1, found
    many, top = tl.load(told), tl.load(told + 1)
    if ROUNDS > 0:
        after = found.to(tl.float32, bitcast=True)
        mean = tl.load(told + 2) / n
        low, high = mean * 0.0, mean * 0.0 + 1.0
        above, below = after * 0.0 + float("inf"), after * 0.0
        for _ in range(ROUNDS):
            ratio = (low + high) / 2
            threshold = (mean + ratio * (top - mean)).to(tl.float32)
            few = after < threshold
            above = tl.where(few, tl.minimum(above, threshold), above)
            below = tl.where(few, below, tl.maximum(below, threshold))
            high = tl.where(few, ratio, high)
            low = tl.where(few, low, ratio)
        upper, lower = sized(above), sized(below)
    tl.store(limits, upper)
    tl.store(limits + 1, lower)
    tl.store(limits + 2, word)
    stands = (many > k) & (many <= room) & (top < float("inf")) & (lower >= tl.load(floor))
    tl.store(told + 3, stands.to(tl.float64))


@triton.jit
def judged(size, limits):
    """1 in the upper half of a word for what counts, 1 in the lower for what may."""
    upper, lower = tl.load(limits), tl.load(limits + 1)
    sure = (size >= upper).to(tl.int64)
    return (sure << 32) | (((size >= lower) & (size < upper)).to(tl.int64))


@triton.jit
def judge(values, told, limits, marks, room, TILE: tl.constexpr):
    at = tl.program_id(0) * TILE + tl.arange(0, TILE)
    here = (at < tl.load(told)) & (at < room)
    size = sized(tl.load(values + at, mask=here, other=0.0))
    tl.store(marks + at, tl.where(here, judged(size, limits), 0), mask=at < room)


@triton.jit(do_not_specialize=["k"])
def hand_out(
    indices, values, told, limits, sums, r, out_indices, out_values, k, room, KEEP: tl.constexpr, TILE: tl.constexpr
):
    """Each chosen one to its place: after those before it that are sure, or in the run."""
    at = tl.program_id(0) * TILE + tl.arange(0, TILE)
    here = (at < tl.load(told) * tl.load(told + 3)) & (at < room)
    value = tl.load(values + at, mask=here, other=0.0)
    mine = judged(sized(value), limits)
    before = tl.load(sums + at, mask=here, other=0) - mine
    every = tl.load(sums + room - 1)
    need = k - (every >> 32)
    start = tl.load(limits + 2).to(tl.int64) % tl.maximum((every & 0xFFFFFFFF) - need + 1, 1)
    passed = (before & 0xFFFFFFFF) - start
    chosen = here & (((mine >> 32) != 0) | ((mine != 0) & (passed >= 0) & (passed < need)))
    to = (before >> 32) + tl.minimum(tl.maximum(passed, 0), need)
    index = tl.load(indices + at, mask=chosen, other=0)
    tl.store(out_indices + to, index, mask=chosen)
    tl.store(out_values + to, value, mask=chosen)
    if KEEP:
        tl.store(r + index, tl.zeros((TILE,), tl.float32), mask=chosen)
