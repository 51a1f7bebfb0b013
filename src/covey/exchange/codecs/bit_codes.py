"""Whole numbers in as many bits as they need: Elias gamma codes, and Golomb codes for gaps.

A code is a count in unary, then some plain bits. Here all counts of a page come first and all plain bits after them:
the bits are those of the codes one behind the other, but all numbers of a page can be read, and written, at once.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from covey.errors import WireError
from covey.exchange import kernels

try:
    from covey.exchange.codecs import bit_codes_compiled as fast
except ImportError:  # without numba
    fast = None  # type: ignore[assignment]

PAGE = 1 << 18  # numbers that are written at once
MOST = 48  # bits of a number
ELIAS = -1  # as a width: this many plain bits as the unary count says


def elias_bits(numbers: Tensor) -> int:
    """Bits of the Elias gamma codes of numbers from 1 on: 2 floor(log2 n) + 1 each."""
    return sum(_measure(numbers.long(), ELIAS))


def elias(numbers: Tensor) -> tuple[Tensor, Tensor]:
    """The Elias gamma codes of numbers from 1 on: bytes, and how many of them each page has."""
    return _write_all(numbers.long(), ELIAS)


def elias_read(data: Tensor, pages: Tensor, count: int) -> Tensor:
    """The `count` numbers that these codes stand for."""
    return _read_all(data, pages, count, ELIAS)


def golomb_width(density: float) -> int:
    """How many plain bits are best for the gaps between numbers that are there with this probability (Sattler 2019)."""
    golden = (math.sqrt(5) + 1) / 2
    return max(0, 1 + math.floor(math.log2(math.log(golden - 1) / math.log1p(-density)))) if density < 1 else 0


def golomb_bits(density: float) -> float:
    """Bits that a gap then has in the mean."""
    width = golomb_width(density)
    return width + 1 / (1 - (1 - density) ** (1 << width)) if density < 1 else 1.0


def golomb(gaps: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """The Golomb codes of gaps from 1 on, with this many plain bits: bytes, and how many of them each page has."""
    return _write_all(gaps.long() - 1, width)


def golomb_read(data: Tensor, pages: Tensor, count: int, width: int) -> Tensor:
    """The `count` gaps that these codes stand for."""
    return _read_all(data, pages, count, width) + 1


def page_count(count: int) -> int:
    return -(-count // PAGE)


def _write_all(numbers: Tensor, width: int) -> tuple[Tensor, Tensor]:
    written = [_write(page, width) for page in numbers.split(PAGE)] if numbers.numel() else []
    sizes = torch.tensor([page.numel() for page in written], dtype=torch.int32)
    return torch.cat(written) if written else torch.empty(0, dtype=torch.uint8), sizes


def _read_all(data: Tensor, pages: Tensor, count: int, width: int) -> Tensor:
    sizes = pages.tolist()
    if len(sizes) != page_count(count) or min(sizes, default=0) < 0 or sum(sizes) != data.numel():
        raise WireError(f"{len(sizes)} pages of {sum(sizes)} bytes where {data.numel()} came for {count} numbers")
    counts = [PAGE] * (count // PAGE) + [count % PAGE] * (count % PAGE > 0)
    found = [_read(piece, many, width) for piece, many in zip(data.split(sizes), counts, strict=True)]
    return torch.cat(found) if found else torch.empty(0, dtype=torch.int64)


def _broken(count: int) -> WireError:
    return WireError(f"codes that do not stand for {count} numbers")


def _measure(numbers: Tensor, width: int) -> tuple[int, int]:
    """Bits of the unary counts, and plain ones."""
    if fast:
        return fast.measure(numbers.cpu().numpy(), width)
    counts, widths = _counts(numbers, width)
    return int(counts.sum()) + numbers.numel(), int(widths.sum())


def _write(numbers: Tensor, width: int) -> Tensor:
    """A one after this many zeros for each number, then the low bits of each, the lowest first."""
    unary, plain = _measure(numbers, width)
    if fast:
        page = torch.zeros(-(-(unary + plain) // 8), dtype=torch.uint8)
        fast.write(numbers.cpu().numpy(), width, unary, page.numpy())
        return page
    counts, widths = _counts(numbers, width)
    flags = torch.zeros(unary + plain, dtype=torch.int32)
    flags[(counts + 1).cumsum(0) - 1] = 1
    owner, place = _places(widths, plain)
    flags[unary:] = ((numbers[owner] >> place) & 1).to(torch.int32)
    return kernels.pack_bits(flags, 1)


def _read(data: Tensor, count: int, width: int) -> Tensor:
    """The numbers of a page."""
    if fast:
        numbers = torch.empty(count, dtype=torch.int64)
        if not fast.read(data.cpu().contiguous().numpy(), width, MOST, numbers.numpy()):
            raise _broken(count)
        return numbers
    flags = kernels.unpack_bits(data, 1, 8 * data.numel())
    ends = flags.nonzero().view(-1)[:count]
    if ends.numel() < count:
        raise _broken(count)
    counts = ends - torch.cat([ends.new_full((1,), -1), ends[:-1]]) - 1
    rest = flags[int(ends[-1]) + 1 :]
    widths = counts if width == ELIAS else torch.full_like(counts, width)
    total = int(widths.sum())
    if int(widths.max()) > MOST or not total <= rest.numel() < total + 8:
        raise _broken(count)
    owner, place = _places(widths, total)
    low = torch.zeros_like(counts).index_add_(0, owner, rest[:total].long() << place)
    return low + (1 << counts if width == ELIAS else counts << width)


def _counts(numbers: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """What is written in unary for each number, and how many plain bits it has."""
    if width != ELIAS:
        return numbers >> width, torch.full_like(numbers, width)
    exponents = torch.frexp(numbers.double()).exponent.long() - 1
    return exponents, exponents


def _places(widths: Tensor, total: int) -> tuple[Tensor, Tensor]:
    """For each plain bit whose it is, and which."""
    owner = torch.repeat_interleave(torch.arange(widths.numel()), widths, output_size=total)
    return owner, torch.arange(total) - (widths.cumsum(0) - widths)[owner]
