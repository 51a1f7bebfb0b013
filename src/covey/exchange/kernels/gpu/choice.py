# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False, disallow-untyped-decorators=False
"""Triton: all numbers that reach a threshold, in one launch."""

from __future__ import annotations

import triton
import triton.language as tl

from covey.exchange.kernels.gpu.launch import EACH, REFUSAL, leave, meet, share, tell
from covey.exchange.kernels.gpu.rows import INFINITE, sized

MANY, TOPS = tl.constexpr(32), tl.constexpr(32 + EACH)  # in the workspace


@triton.jit
def most_and_bits(most, bits, other_most, other_bits):
    return tl.maximum(most, other_most), bits | other_bits


@triton.jit
def streamed(x, r, at, mask, KEEP: tl.constexpr):
    """v, of numbers that are not read again soon."""
    v = tl.load(x + at, mask=mask, other=0.0, eviction_policy="evict_first")
    if KEEP:
        v += tl.load(r + at, mask=mask, other=0.0)
    return v


@triton.jit
def ones(word):
    """How many bits are 1."""
    word = word.to(tl.uint32, bitcast=True)
    word -= (word >> 1) & 0x55555555
    word = (word & 0x33333333) + ((word >> 2) & 0x33333333)
    word = (word + (word >> 4)) & 0x0F0F0F0F
    return ((word * 0x01010101) >> 24).to(tl.int32)


@triton.jit
def place_of(bit):
    """Of the only 1 in a word: the exponent of that power of two."""
    return (bit.to(tl.uint32, bitcast=True).to(tl.float32).to(tl.int32, bitcast=True) >> 23) - 127


@triton.jit(do_not_specialize=["turn", "bits", "room", "tiles"])
def choose(
    x, r, out, words, work, told, turn, n, bits, room, tiles, KEEP: tl.constexpr, TILE: tl.constexpr,
    ALL: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """A bit for each number that reaches, and v to the residual. Then the programs wait for each other, and each puts
    what it has chosen to its place in the order of the numbers, and 0 where it was, if there is `room` for all.

    32 numbers of which one is not finite stay as they are. `words` holds their bits, then whether all were finite;
    `told` is how many reach, or that some are not finite.
    """
    program, programs = tl.program_id(0), tl.num_programs(0)
    first, last = share(tiles, program, programs)
    each: tl.constexpr = TILE // 32
    whole = (words + tiles * each).to(tl.pointer_type(tl.int8), bitcast=True)
    row, column = tl.arange(0, each), tl.arange(0, 32)
    every, most = tl.zeros((each, 32), tl.int32), tl.zeros((each,), tl.int32)
    for tile in range(first, last):
        at = tile * TILE + row[:, None] * 32 + column[None, :]
        mask = at < n
        v = streamed(x, r, at, mask, KEEP)
        reach = (sized(v) >= bits) & mask
        top, word = tl.reduce((sized(v), tl.where(reach, 1 << column[None, :], 0)), 1, most_and_bits)
        if KEEP:
            tl.store(r + at, v, mask=mask & (top < INFINITE)[:, None])
        tl.store(words + tile * each + row, word)
        tl.store(whole + tile * each + row, (top < INFINITE).to(tl.int8))
        every += reach.to(tl.int32)
        most = tl.maximum(most, top)
    tl.store(work + MANY + program, tl.sum(tl.sum(every, 1), 0))
    tl.store(work + TOPS + program, tl.max(most, 0))
    meet(work, programs)
    lane = tl.arange(0, ALL)
    counts = tl.load(work + MANY + lane, mask=lane < programs, other=0)
    largest = tl.max(tl.load(work + TOPS + lane, mask=lane < programs, other=0))
    total = tl.where(largest < INFINITE, tl.sum(counts), REFUSAL)
    if program == 0:
        tell(told, turn, total)
    if total <= room:
        place = tl.sum(tl.where(lane < program, counts, 0))
        out_values = (out + room).to(tl.pointer_type(tl.float32), bitcast=True)
        for begin in range(first * each, last * each, GROUP):
            own = begin + tl.arange(0, GROUP)
            word = tl.load(words + own, mask=own < last * each, other=0)
            many = ones(word)
            to = place + tl.cumsum(many, 0) - many
            place += tl.sum(many)
            for _ in range(tl.max(many)):
                lowest, mine = word & -word, word != 0
                at = own * 32 + place_of(lowest)
                tl.store(out + to, at, mask=mine)
                tl.store(out_values + to, tl.load((r if KEEP else x) + at, mask=mine, other=0.0), mask=mine)
                if KEEP:
                    tl.store(r + at, tl.zeros((GROUP,), tl.float32), mask=mine)
                to += 1
                word ^= lowest
    leave(work, 2 * programs, 2)
