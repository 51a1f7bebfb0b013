# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False
"""Triton: the k largest numbers in one launch, at a cost that hardly depends on their distribution.

A sample gives two of its sizes, between which the k-th largest of all lies but for bad luck. One pass counts what is
larger, what equals either, and puts the sizes strictly between them into a pool: these are few, however many are equal.
Digits of the pool's sizes then give the k-th exactly. Two more passes count and write what is chosen, in the order of
the numbers. Whether they are k is checked: bad luck costs time alone.
"""

from __future__ import annotations

import triton
import triton.language as tl

from covey.exchange.kernels.gpu.choice import streamed
from covey.exchange.kernels.gpu.launch import EACH as EACH_WORDS
from covey.exchange.kernels.gpu.launch import REFUSAL, leave, meet, share, tell
from covey.exchange.kernels.gpu.launch import TABLE as TABLE_WORDS
from covey.exchange.kernels.gpu.rows import INFINITE, mix, sized, wanted

EACH = tl.constexpr(EACH_WORDS)
TABLES = tl.constexpr(32)  # in the workspace: four digits' counts, then what each program has found
FOUND, ZEROED = tl.constexpr(32 + TABLE_WORDS), tl.constexpr(32 + TABLE_WORDS)


@triton.jit
def pick(table, rank, BINS: tl.constexpr):
    """The digit in which the rank-th largest lies, and its rank there."""
    lane = tl.arange(0, BINS)
    here = tl.load(table + lane)
    from_here = tl.sum(here) - tl.cumsum(here, 0) + here
    digit = tl.max(tl.where(from_here >= rank, lane, 0))
    return digit, rank - tl.sum(tl.where(lane > digit, here, 0))


@triton.jit
def bounds(sample, high_rank, low_rank, SAMPLE: tl.constexpr):
    """The sizes of these ranks in the sample, from the largest on; without a rank, none is as large or as small."""
    sizes = tl.load(sample + tl.arange(0, SAMPLE))
    high, low, bit = high_rank * 0, high_rank * 0, high_rank * 0 + 0x40000000
    for _ in range(31):
        both = tl.sum((sizes >= (high | bit)).to(tl.int32) + ((sizes >= (low | bit)).to(tl.int32) << 16))
        high = tl.where((both & 0xFFFF) >= high_rank, high | bit, high)
        low = tl.where((both >> 16) >= low_rank, low | bit, low)
        bit >>= 1
    return tl.where(high_rank < 1, INFINITE, high), tl.where(low_rank > SAMPLE, -1, low)


@triton.jit
def digits(pool, extent, table, least, SHIFT: tl.constexpr, known, PIECE: tl.constexpr):
    """How often each digit of 8 bits occurs in the pool among those that begin with the digits known so far."""
    for first in range(tl.program_id(0) * PIECE, extent, tl.num_programs(0) * PIECE):
        at = first + tl.arange(0, PIECE)
        above = tl.load(pool + at, mask=at < extent, other=-1) - least
        here = (above > 0) & (((above >> SHIFT) >> 8) == known)
        counted = tl.histogram((above >> SHIFT) & 255, 256, mask=here)
        tl.atomic_add(table + tl.arange(0, 256), counted, mask=counted > 0, sem="relaxed")


@triton.jit
def limits_of(found, k, n, mean, most, ROUNDS: tl.constexpr):
    """From which size on all count, and from which on some may, as bits.

    ROUNDS 0 is the exact k largest: those above the k-th, then its equals. Else by bisection between mean and maximum
    (Shi et al. 2021): whether more than k reach a threshold is whether the next after the k largest does.
    """
    upper, lower = found + 1, found
    if ROUNDS > 0:
        top = most.to(tl.float32, bitcast=True).to(tl.float64)
        after = found.to(tl.float32, bitcast=True)
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
    return upper, lower


@triton.jit
def total(work, kind: tl.constexpr, programs, ALL: tl.constexpr):
    lane = tl.arange(0, ALL)
    return tl.sum(tl.load(work + FOUND + kind * EACH + lane, mask=lane < programs, other=0))


@triton.jit
def most_and_sums(most, one, two, other_most, other_one, other_two):
    return tl.maximum(most, other_most), one + other_one, two + other_two


@triton.jit
def draw(x, r, sample, n, one, two, KEEP: tl.constexpr, SAMPLE: tl.constexpr, DRAWN: tl.constexpr):
    """A number of each of SAMPLE stretches, or all there are."""
    for begin in range(tl.program_id(0) * DRAWN, SAMPLE, tl.num_programs(0) * DRAWN):
        drawn = begin + tl.arange(0, DRAWN)
        at = drawn
        if n > SAMPLE:
            at = (drawn.to(tl.int64) * n // SAMPLE).to(tl.int32)
            length = ((drawn.to(tl.int64) + 1) * n // SAMPLE).to(tl.int32) - at
            at += (mix(drawn, one, two) >> 8).to(tl.int32) % length
        size = sized(wanted(x, r, at, at < n, KEEP))
        tl.store(sample + drawn, tl.where(at < n, size, -1))


@triton.jit
def no_numbers(pool, free, left, room, CHUNK: tl.constexpr):
    """Fill the rest of a part of the pool."""
    spare = tl.arange(0, CHUNK)
    tl.store(pool + free + spare, tl.full((CHUNK,), -1, tl.int32), mask=(spare < left) & (free + left <= room))


@triton.jit
def survey(
    x, r, pool, tops, work, sums, first, last, n, room, high, low, KEEP: tl.constexpr, ROUNDS: tl.constexpr,
    TILE: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Count sizes beyond, at and between the bounds, and put the latter into the pool; v goes to the residual."""
    larger, at_high, at_low, between, most = first * 0, first * 0, first * 0, first * 0, first * 0
    size_sum, free, left = (first * 0).to(tl.float64), first * 0, first * 0
    for tile in range(first, last):
        at = tile * TILE + tl.arange(0, TILE)
        mask = at < n
        v = streamed(x, r, at, mask, KEEP)
        size = sized(v)
        inside = (size > low) & (size < high) & mask
        ends = ((size > high) & mask).to(tl.int32) + (((size == high) & mask).to(tl.int32) << 16)
        rest = ((size == low) & mask).to(tl.int32) + (inside.to(tl.int32) << 16)
        peak, ends, rest = tl.reduce((size, ends, rest), 0, most_and_sums)
        if KEEP:
            tl.store(r + at, v, mask=mask & (peak < INFINITE))
        here = rest >> 16
        if here > left:
            no_numbers(pool, free, left, room, CHUNK)
            left = tl.maximum(here, CHUNK)
            free = tl.atomic_add(work + 1, left, sem="relaxed")
        to = free + tl.cumsum(inside.to(tl.int32), 0) - 1
        free += here
        left -= here
        tl.store(pool + to, size, mask=inside & (free <= room))
        tl.store(tops + tile, peak)
        larger += ends & 0xFFFF
        at_high += ends >> 16
        at_low += rest & 0xFFFF
        between += here
        most = tl.maximum(most, peak)
        if ROUNDS > 0:
            size_sum += tl.sum(tl.abs(v)).to(tl.float64)
    no_numbers(pool, free, left, room, CHUNK)
    mine = work + FOUND + tl.program_id(0)
    tl.store(mine, larger)
    tl.store(mine + EACH, at_high)
    tl.store(mine + 2 * EACH, at_low)
    tl.store(mine + 3 * EACH, between)
    tl.store(mine + 6 * EACH, most)
    if ROUNDS > 0:
        tl.store(sums + tl.program_id(0), size_sum)


@triton.jit
def kth(pool, extent, work, low, high, rank, met, PIECE: tl.constexpr):
    """The size of this rank in the pool, digit by digit."""
    known = rank * 0
    for shift in tl.static_range(24, -1, -8):
        known = known << 8
        if (high - low) >> shift != 0:
            table = work + TABLES + 32 * shift
            digits(pool, extent, table, low, shift, known >> 8, PIECE)
            met += tl.num_programs(0)
            meet(work, met)
            digit, rank = pick(table, rank, 256)
            known |= digit
    return low + known, met


@triton.jit
def judged(size, mask, upper, lower):
    """1 in the upper half of a word for what counts, 1 in the lower for what may."""
    return (((size >= upper) & mask).to(tl.int32) << 16) | ((size >= lower) & (size < upper) & mask).to(tl.int32)


@triton.jit
def mark(v, marks, first, last, n, upper, lower, TILE: tl.constexpr):
    """How many of each tile count, and may, and of all of them."""
    sure, may = first * 0, first * 0
    for back in range(first, last):
        tile = last - 1 - (back - first)  # what was written last may still be near
        at = tile * TILE + tl.arange(0, TILE)
        here = tl.sum(judged(sized(tl.load(v + at, mask=at < n, other=0.0)), at < n, upper, lower))
        tl.store(marks + tile, here)
        sure += here >> 16
        may += here & 0xFFFF
    return sure, may


@triton.jit(do_not_specialize=["turn", "tiles", "k", "room", "high_rank", "low_rank", "one", "two", "word"])
def top(
    x, r, out, scratch, work, told, turn, n, tiles, k, room, high_rank, low_rank, one, two, word, KEEP: tl.constexpr,
    ROUNDS: tl.constexpr, SAMPLE: tl.constexpr, DRAWN: tl.constexpr, PIECE: tl.constexpr, TILE: tl.constexpr,
    ALL: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """`told` is whether the choice stands, or that some are not finite; the residual holds v, and 0 of what was chosen.

    A tile with NaN or infinity stays as it is. `scratch` holds the sample, the largest size of each tile and how many
    of it count, and the pool; parts of it that are not filled hold -1.
    """
    program, programs = tl.program_id(0), tl.num_programs(0)
    first, last = share(tiles, program, programs)
    marks = scratch + SAMPLE + tiles
    pool = marks + tiles
    mine = work + FOUND + program
    sums = (work + FOUND + 7 * EACH).to(tl.pointer_type(tl.float64), bitcast=True)
    v = r if KEEP else x

    draw(x, r, scratch, n, one, two, KEEP, SAMPLE, DRAWN)
    meet(work, programs)
    high, low = bounds(scratch, high_rank, low_rank, SAMPLE)
    survey(
        x, r, pool, scratch + SAMPLE, work, sums, first, last, n, room, high, low, KEEP, ROUNDS, TILE, CHUNK
    )  # fmt: skip
    met = 2 * programs
    meet(work, met)

    lane = tl.arange(0, ALL)
    most = tl.max(tl.load(work + FOUND + 6 * EACH + lane, mask=lane < programs, other=0))
    mean = (k * 0).to(tl.float64)
    if ROUNDS > 0:
        mean = tl.sum(tl.load(sums + lane, mask=lane < programs, other=0.0)) / n
    extent, many = tl.load(work + 1), total(work, 3, programs, ALL)
    rank = k + (1 if ROUNDS > 0 else 0) - total(work, 0, programs, ALL)
    fine = (rank > 0) & (extent <= room) & (most < INFINITE)
    rank -= total(work, 1, programs, ALL)
    fine &= rank <= many + total(work, 2, programs, ALL)
    found = tl.where(rank <= 0, high, low)
    if fine & (rank > 0) & (rank <= many):
        found, met = kth(pool, extent, work, low, high, rank, met, PIECE)
    upper, lower = limits_of(found, k, n, mean, most, ROUNDS)

    sure, may = mark(v, marks, first, tl.where(fine, last, first), n, upper, lower, TILE)
    tl.store(mine + 4 * EACH, sure)
    tl.store(mine + 5 * EACH, may)
    met += programs
    meet(work, met)
    sures = tl.load(work + FOUND + 4 * EACH + lane, mask=lane < programs, other=0)
    mays = tl.load(work + FOUND + 5 * EACH + lane, mask=lane < programs, other=0)
    need = k - tl.sum(sures)
    fine &= (need >= 0) & (need <= tl.sum(mays))
    if program == 0:
        tell(told, turn, tl.where(most < INFINITE, fine.to(tl.int32), REFUSAL))
    if fine:
        run = word % (tl.sum(mays) - need + 1)
        sure_before = tl.sum(tl.where(lane < program, sures, 0))
        may_before = tl.sum(tl.where(lane < program, mays, 0))
        hand_out(v, r, out, marks, first, last, n, k, upper, lower, need, run, sure_before, may_before, KEEP, TILE)
    leave(work, met + programs, ZEROED)


@triton.jit
def hand_out(
    v, r, out, tile_marks, first, last, n, k, upper, lower, need, run, sure_before, may_before, KEEP: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """Each chosen one to its place: after those before it that are sure, or are in the run."""
    out_values = (out + k).to(tl.pointer_type(tl.float32), bitcast=True)
    for tile in range(first, last):
        marks = tl.load(tile_marks + tile)
        sure, may = marks >> 16, marks & 0xFFFF
        begin = tl.minimum(tl.maximum(run - may_before, 0), may)
        end = tl.minimum(tl.maximum(run + need - may_before, begin), may)
        if sure + end - begin > 0:
            at = tile * TILE + tl.arange(0, TILE)
            now = tl.load(v + at, mask=at < n, other=0.0)
            code = judged(sized(now), at < n, upper, lower)
            chosen = (code >> 16) != 0
            if end > begin:
                passed = tl.cumsum(code & 1, 0) - (code & 1)
                chosen |= ((code & 1) != 0) & (passed >= begin) & (passed < end)
            base = sure_before + tl.minimum(tl.maximum(may_before - run, 0), need) - 1
            to = base + tl.cumsum(chosen.to(tl.int32), 0)
            tl.store(out + to, at, mask=chosen)
            tl.store(out_values + to, now, mask=chosen)
            if KEEP:
                tl.store(r + at, tl.zeros_like(now), mask=chosen)
        sure_before += sure
        may_before += may
