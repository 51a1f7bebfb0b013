"""Loops that put few bits of many numbers side by side, for numba."""

from __future__ import annotations

from typing import Any

import numpy as np

from covey.exchange.kernels.compiled import compiled
from covey.exchange.kernels.cpu_stats import U

PIECE = 8192  # numbers unpacked at a time: they stay in the cache
BYTE = np.uint64(255)
LOW = (np.uint64(0x00FF00FF00FF00FF), np.uint64(0x0000FFFF0000FFFF), np.uint64(0x00000000FFFFFFFF))


@compiled
def eights(flags: Any, out: Any, count: int) -> None:
    """Bytes of 0 and 1, eight to a byte, lowest bit first."""
    flags[count : out.size * 8] = 0
    words = flags.view(np.uint64)
    for j in range(out.size):
        out[j] = np.uint8((words[j] * np.uint64(0x0102040810204080)) >> np.uint64(56))


@compiled
def ones(packed: Any, flags: Any) -> None:
    """Bytes that are not 0 where the bit is set."""
    words = flags.view(np.uint64)
    for j in range(packed.size):
        words[j] = (np.uint64(packed[j]) * np.uint64(0x0101010101010101)) & np.uint64(0x8040201008040201)


@compiled
def quads(codes: Any, out: Any, count: int) -> None:
    """Bytes of 0, 2 and 3, four to a byte, the first in the two high bits."""
    codes[count : out.size * 4] = 0
    words = codes.view(U)
    for j in range(out.size):
        out[j] = np.uint8(U(words[j] * U(0x40100401)) >> U(24))


@compiled
def squeeze(codes: Any, bits: int, out: Any) -> None:
    """Bytes below 2^bits, `bits` bits each: within 8 numbers neighbours move together, then pairs, then fours."""
    words, b = codes.view(np.uint64), np.uint64(bits)
    for j in range(out.size // bits):
        w = words[j]
        w = (w & LOW[0]) | ((w & ~LOW[0]) >> (np.uint64(8) - b))
        w = (w & LOW[1]) | ((w & ~LOW[1]) >> (np.uint64(16) - np.uint64(2) * b))
        words[j] = (w & LOW[2]) | ((w & ~LOW[2]) >> (np.uint64(32) - np.uint64(4) * b))
    for j in range(out.size // bits):
        for t in range(bits):
            out[j * bits + t] = codes[8 * j + t]


@compiled
def stretch(packed: Any, bits: int, codes: Any) -> None:
    """The way back."""
    words, b, mask = codes.view(np.uint64), np.uint64(bits), np.uint64((1 << bits) - 1)
    for j in range(packed.size // bits):
        for t in range(bits):
            codes[8 * j + t] = packed[j * bits + t]
    for j in range(packed.size // bits):
        w = words[j]
        w = (w & (LOW[2] >> (np.uint64(32) - np.uint64(4) * b))) | ((w << (np.uint64(32) - np.uint64(4) * b)) & ~LOW[2])
        w = (w & LOW[1]) | ((w << (np.uint64(16) - np.uint64(2) * b)) & ~LOW[1])
        w = (w & LOW[0]) | ((w << (np.uint64(8) - b)) & ~LOW[0])
        words[j] = w & (mask * np.uint64(0x0101010101010101))


@compiled
def pack(values: Any, bits: int, out: Any, start: int, stop: int) -> None:
    """From `start`, a multiple of 8, so that the first bit is the first of a byte."""
    mask = np.uint64((1 << bits) - 1)
    whole = start if bits > 8 else start + (stop - start) // 8 * 8
    codes = np.empty(PIECE, np.uint8)
    for low in range(start, whole, PIECE):
        vs = values[low : min(low + PIECE, whole)]
        for i in range(vs.size):
            codes[i] = np.uint8(vs[i]) & np.uint8(mask)
        squeeze(codes, bits, out[low // 8 * bits : (low + vs.size) // 8 * bits])
    at, word, filled = whole * bits // 8, np.uint64(0), 0
    for i in range(whole, stop):
        word |= (np.uint64(values[i]) & mask) << np.uint64(filled)
        filled += bits
        while filled >= 8:
            out[at] = np.uint8(word & BYTE)
            word >>= np.uint64(8)
            filled -= 8
            at += 1
    if filled:
        out[at] = np.uint8(word & BYTE)


@compiled
def unpack(packed: Any, bits: int, out: Any, start: int, stop: int) -> None:
    mask = np.uint64((1 << bits) - 1)
    whole = start if bits > 8 else start + (stop - start) // 8 * 8
    codes = np.empty(PIECE, np.uint8)
    for low in range(start, whole, PIECE):
        os = out[low : min(low + PIECE, whole)]
        stretch(packed[low // 8 * bits : (low + os.size) // 8 * bits], bits, codes)
        for i in range(os.size):
            os[i] = codes[i]
    at, word, filled = whole * bits // 8, np.uint64(0), 0
    for i in range(whole, stop):
        while filled < bits:
            word |= np.uint64(packed[at]) << np.uint64(filled)
            filled += 8
            at += 1
        out[i] = word & mask
        word >>= np.uint64(bits)
        filled -= bits
