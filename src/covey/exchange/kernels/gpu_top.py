# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False
"""Triton: the k largest among candidates, without waiting for the device in between.

A sample gives a floor that somewhat more than k numbers reach, and the k-th of them is not far above it: a radix select
over what they exceed the floor by finds it in two rounds, or gives up. From it follow two limits: all that reach the
upper count, and of those between both a run. Where it gives up, a radix select over all numbers follows: four passes
count digits of 8 bits, and two more write the chosen ones in the order of their indices.
"""

from __future__ import annotations

import triton
import triton.language as tl

from covey.exchange.kernels.gpu_choice import most_of, number, sum_of
from covey.exchange.kernels.gpu_rows import INFINITE, mix, sized, wanted

SAMPLED, FIRST, NEXT = tl.constexpr(8192), tl.constexpr(2048), tl.constexpr(4096)  # 13, 11 and 12 bits
FINE = tl.constexpr(12)  # bits of the last round: both reach to twice the floor


@triton.jit
def pick(table, rank, BINS: tl.constexpr):
    """The digit in which the rank-th largest lies, and its rank there."""
    lane = tl.arange(0, BINS)
    here = tl.load(table + lane)
    from_here = tl.sum(here) - tl.cumsum(here, 0) + here
    digit = tl.max(tl.where(from_here >= rank, lane, 0))
    return digit, rank - tl.sum(tl.where(lane > digit, here, 0))


@triton.jit(do_not_specialize=["one", "two"])
def sample(x, r, bins, n, one, two, KEEP: tl.constexpr, SAMPLE: tl.constexpr, TILE: tl.constexpr):
    """How many of a sample, one from each of SAMPLE stretches, have each of the first 13 bits of a size."""
    lane = tl.program_id(0) * TILE + tl.arange(0, TILE)
    stretch = n // SAMPLE
    at = lane * stretch + (mix(lane, one, two) >> 8).to(tl.int32) % stretch
    size = sized(wanted(x, r, at, lane >= 0, KEEP))
    tl.atomic_add(bins + (size >> 18), tl.full((TILE,), 1, tl.int32), sem="relaxed")


@triton.jit(do_not_specialize=["rank"])
def settle_floor(bins, floor, rank):
    """The size that about this many of the sample reach."""
    digit, rank = pick(bins, rank, SAMPLED)
    tl.store(floor, digit << 18)


@triton.jit
def coarse(above):
    """The first digit of what a size exceeds the floor by; the last one means too much, and nobody has less than 0."""
    return tl.maximum(tl.minimum(above >> FINE, FIRST - 1), 0)


@triton.jit(do_not_specialize=["rank", "room"])
def histogram(values, pool, floor, table, rank, room, LAST: tl.constexpr, TILE: tl.constexpr):
    """How often each first digit occurs among the candidates, or each last one of those that have the right first."""
    begin, many = tl.program_id(0) * TILE, tl.load(pool)
    if (begin < many) & (many <= room):  # what does not fit is not judged
        at = begin + tl.arange(0, TILE)
        here = at < many
        above = sized(tl.load(values + at, mask=here, other=0.0)) - tl.load(floor)
        if LAST:
            first, rank = pick(table, rank, FIRST)
            here &= coarse(above) == first
            to = table + FIRST + (above & (NEXT - 1))
            tl.atomic_add(to, tl.full((TILE,), 1, tl.int32), mask=here, sem="relaxed")
        else:
            counted = tl.histogram(coarse(above), FIRST, mask=here)
            tl.atomic_add(table + tl.arange(0, FIRST), counted, mask=counted > 0, sem="relaxed")


@triton.jit
def verdict(table, least, most, k, n, totals, groups, ROUNDS: tl.constexpr):
    """The two limits, as bits, and whether the k-th was found.

    ROUNDS 0 is the exact k largest: those above the k-th, then its equals. Else by bisection between mean and maximum
    (Shi et al. 2021): whether more than k reach a threshold is whether the next after the k largest does.
    """
    rank = k + (1 if ROUNDS > 0 else 0)
    first, rank = pick(table, rank, FIRST)
    last, rank = pick(table + FIRST, rank, NEXT)
    found = least + (first << FINE | last)
    upper, lower = found + 1, found
    if ROUNDS > 0:
        top = number(most)
        after = found.to(tl.float32, bitcast=True)
        mean = sum_of(totals, groups, top * 0.0) / n
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
    return upper, lower, first < FIRST - 1


@triton.jit
def judged(size, upper, lower):
    """1 in the upper half of a word for what counts, 1 in the lower for what may."""
    return ((size >= upper).to(tl.int32) << 16) | ((size >= lower) & (size < upper)).to(tl.int32)


@triton.jit
def wide(marks):
    """The same in a word of twice the length, in which there is room for all."""
    return ((marks >> 16).to(tl.int64) << 32) | (marks & 0xFFFF).to(tl.int64)


@triton.jit(do_not_specialize=["k", "room", "tiles", "groups"])
def judge(
    table, floor, pool, values, tile_many, tile_base, tops, totals, limits, told, tile_marks, marks, n, k, room, tiles,
    groups, ROUNDS: tl.constexpr, TILES: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """The limits, and how many of each tile and of the group count, and may; and whether all that stands."""
    group = tl.program_id(0)
    every, most, least = tl.load(pool), most_of(tops, groups), tl.load(floor)
    upper, lower, known = verdict(table, least, most, k, n, totals, groups, ROUNDS)
    tile = group * TILES + tl.arange(0, TILES)
    here = tl.load(tile_many + tile, mask=tile < tiles, other=0)
    base = tl.load(tile_base + tile, mask=tile < tiles, other=0)
    found = tl.zeros((TILES,), tl.int64)
    stands = (every > k) & (every <= room) & (most < INFINITE) & (lower >= least) & known
    if stands:
        for first in range(0, tl.max(here), WIDE):
            lane = first + tl.arange(0, WIDE)[None, :]
            mask = lane < here[:, None]
            size = sized(tl.load(values + base[:, None] + lane, mask=mask, other=0.0))
            found += wide(tl.sum(tl.where(mask, judged(size, upper, lower), 0), axis=1))
    tl.store(tile_marks + tile, found, mask=tile < tiles)
    tl.store(marks + group, tl.sum(found))
    if group == 0:
        tl.store(limits, upper)
        tl.store(limits + 1, lower)
        tl.store(told, every.to(tl.float64))
        tl.store(told + 1, number(most))
        tl.store(told + 2, stands.to(tl.float64))


@triton.jit(do_not_specialize=["k", "word", "tiles", "groups"])
def hand_out(
    limits, told, indices, values, tile_many, tile_base, tile_marks, marks, r, out_indices, out_values, k, word, tiles,
    groups, KEEP: tl.constexpr, TILES: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Each chosen one to its place: after those before it that are sure, or in the run that `word` draws."""
    group = tl.program_id(0)
    if tl.load(told + 2) > 0:
        upper, lower = tl.load(limits), tl.load(limits + 1)
        nothing = (group * 0).to(tl.int64)
        before, every = sum_of(marks, group, nothing), sum_of(marks, groups, nothing)
        need = k - (every >> 32)
        start = word.to(tl.int64) % tl.maximum((every & 0xFFFFFFFF) - need + 1, 1)
        tile = group * TILES + tl.arange(0, TILES)
        here = tl.load(tile_many + tile, mask=tile < tiles, other=0)
        base = tl.load(tile_base + tile, mask=tile < tiles, other=0)
        own = tl.load(tile_marks + tile, mask=tile < tiles, other=0)
        reached = before + tl.cumsum(own, 0) - own
        for first in range(0, tl.max(here), WIDE):
            lane = first + tl.arange(0, WIDE)[None, :]
            mask = lane < here[:, None]
            value = tl.load(values + base[:, None] + lane, mask=mask, other=0.0)
            mine = tl.where(mask, judged(sized(value), upper, lower), 0)
            so_far = reached[:, None] + wide(tl.cumsum(mine, 1) - mine)
            passed = (so_far & 0xFFFFFFFF) - start
            chosen = ((mine >> 16) != 0) | ((mine != 0) & (passed >= 0) & (passed < need))
            to = (so_far >> 32) + tl.minimum(tl.maximum(passed, 0), need)
            index = tl.load(indices + base[:, None] + lane, mask=chosen, other=0)
            tl.store(out_indices + to, index, mask=chosen)
            tl.store(out_values + to, value, mask=chosen)
            if KEEP:
                tl.store(r + index, tl.zeros((TILES, WIDE), tl.float32), mask=chosen)
            reached += wide(tl.sum(mine, axis=1))


# -- any numbers, whatever their distribution: a radix select over all of them, digit by digit ------------------------


@triton.jit(do_not_specialize=["n"])
def count_digits(v, table, state, n, SHIFT: tl.constexpr, BITS: tl.constexpr, FIRST: tl.constexpr, TILE: tl.constexpr):
    """How often each digit occurs among the sizes that begin with the bits found so far."""
    at = tl.program_id(0) * TILE + tl.arange(0, TILE)
    here = at < n
    size = sized(tl.load(v + at, mask=here, other=0.0))
    if not FIRST:
        here &= (size >> (SHIFT + BITS)) == (tl.load(state) >> (SHIFT + BITS))
    digit = (size >> SHIFT) & ((1 << BITS) - 1)
    counted = tl.histogram(digit, 1 << BITS, mask=here)
    tl.atomic_add(table + tl.arange(0, 1 << BITS), counted, mask=counted > 0, sem="relaxed")


@triton.jit
def settle_digit(table, state, SHIFT: tl.constexpr, BITS: tl.constexpr):
    """Add the digit of the k-th largest to the bits found so far; `state` is these, and its rank behind them."""
    digit, rank = pick(table, tl.load(state + 1), 1 << BITS)
    tl.store(state, tl.load(state) | (digit << SHIFT))
    tl.store(state + 1, rank)


@triton.jit
def packed(size, here, least):
    """1 in the upper half of a word for what is larger than the k-th, 1 in the lower for its equals."""
    return (((size > least) & here).to(tl.int32) << 16) | ((size == least) & here).to(tl.int32)


@triton.jit(do_not_specialize=["n"])
def mark(v, state, marks, n, TILE: tl.constexpr):
    """How many of a tile are larger, and equal."""
    tile = tl.program_id(0)
    at = tile * TILE + tl.arange(0, TILE)
    found = tl.sum(packed(sized(tl.load(v + at, mask=at < n, other=0.0)), at < n, tl.load(state)))
    tl.store(marks + tile, ((found >> 16).to(tl.int64) << 32) | (found & 0xFFFF).to(tl.int64))


@triton.jit(do_not_specialize=["n"])
def emit(v, state, marks, sums, indices, values, n, ZERO: tl.constexpr, TILE: tl.constexpr):
    """Each chosen one to its place; equals of the k-th by their indices, until there are enough."""
    tile = tl.program_id(0)
    at = tile * TILE + tl.arange(0, TILE)
    number = tl.load(v + at, mask=at < n, other=0.0)
    least, need = tl.load(state), tl.load(state + 1).to(tl.int64)
    found = packed(sized(number), at < n, least)
    before = tl.load(sums + tile) - tl.load(marks + tile)
    inside = tl.cumsum(found, 0) - found
    larger = (before >> 32) + (inside >> 16).to(tl.int64)
    equal = (before & 0xFFFFFFFF) + (inside & 0xFFFF).to(tl.int64)
    chosen = ((found >> 16) != 0) | ((found != 0) & (equal < need))
    to = larger + tl.minimum(equal, need)
    tl.store(indices + to, at, mask=chosen)
    tl.store(values + to, number, mask=chosen)
    if ZERO:
        tl.store(v + at, tl.zeros((TILE,), tl.float32), mask=chosen)
