"""The loops of `coding`, compiled: the same pages, bit for bit, about twenty times as fast. They need numba."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from covey.exchange.kernels.compiled import compiled

Numbers = NDArray[np.int64]
Bytes = NDArray[np.uint8]

ELIAS = -1  # as a width: this many plain bits as the unary count says


@compiled
def exponent(number: int) -> int:
    """The place of the highest bit."""
    found = 0
    while number > 1:
        number >>= 1
        found += 1
    return found


@compiled
def measure(numbers: Numbers, width: int) -> tuple[int, int]:
    """Bits of all unary counts, and plain bits."""
    unary, plain = numbers.size, 0
    for number in numbers:
        if width < 0:
            count = exponent(number)
            unary += count
            plain += count
        else:
            unary += number >> width
            plain += width
    return unary, plain


@compiled
def write(numbers: Numbers, width: int, unary: int, out: Bytes) -> None:
    """Zeros and a one for each number, from the first bit on, and its low bits from bit `unary` on; `out` is zero."""
    place, rest = 0, unary
    for number in numbers:
        count = exponent(number) if width < 0 else number >> width
        place += count
        out[place >> 3] |= np.uint8(1 << (place & 7))
        place += 1
        for bit in range(count if width < 0 else width):
            out[rest >> 3] |= np.uint8(((number >> bit) & 1) << (rest & 7))
            rest += 1


@compiled
def read(data: Bytes, width: int, most: int, out: Numbers) -> bool:
    """Fill `out` with numbers; False when there are fewer, or one has more than `most` bits."""
    bits, place = 8 * data.size, 0
    for index in range(out.size):
        count = 0
        while place < bits and not (data[place >> 3] >> (place & 7)) & 1:
            place += 1
            count += 1
        if place == bits or (width < 0 and count > most):
            return False
        place += 1
        out[index] = count
    for index in range(out.size):
        count = out[index]
        size = count if width < 0 else width
        if place + size > bits:
            return False
        number = np.int64(1) << count if width < 0 else count << width
        for bit in range(size):
            number |= np.int64((data[place >> 3] >> (place & 7)) & 1) << bit
            place += 1
        out[index] = number
    return bits - place < 8
