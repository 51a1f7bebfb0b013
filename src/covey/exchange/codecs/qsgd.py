"""QSGD (Alistarh et al. 2017): a few levels of a bucket's norm, rounded by chance, in Elias codes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, partial
from typing import Literal

import torch
from torch import Tensor

from covey.errors import PlanError, WireError
from covey.exchange import kernels
from covey.exchange.codec import Codec, Coder, Memory, Seed, check, expect, fusing, refused, zeros
from covey.exchange.codecs.bit_codes import elias, elias_bits, elias_read, page_count
from covey.exchange.codecs.coded_runs import NumberRun, RunCoding, chance, code, coded, divided, finite, packed
from covey.exchange.codecs.sparse_numbers import rising
from covey.model.flat import Form
from covey.vector import Vector

Norm = Literal["l2", "max"]
DENSE, SPARSE = 0, 1
"""Of a part: the level of every number, or those of the numbers that are not 0 with the gaps between them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Qsgd:
    """Rounds by chance to `levels` of the norm of a bucket, in Elias codes (Alistarh et al. 2017)."""

    levels: int = 7
    bucket: int = 512
    norm: Norm = "l2"
    coding: Literal["elias", "packed"] = "elias"  # packed: all levels in equally many bits, which is quicker

    def codec(self) -> Codec:
        if not 1 <= self.levels <= 32767:
            raise PlanError(f"qsgd(levels={self.levels}): 1 to 32767")
        if self.bucket < 0:
            raise PlanError(f"qsgd(bucket={self.bucket}): 1 or more numbers share a norm, or 0 for all of them")
        if self.coding == "packed":
            return self.packed()
        return fusing("qsgd", self.coder, partial(expected, self))

    def encode(self, x: Tensor, residual: Tensor | None, run: NumberRun, chance: int) -> tuple[Tensor, Tensor]:
        return kernels.qsgd_encode(x, residual, run.block, self.levels, chance, self.norm)

    def decode(self, levels: Tensor, norms: Tensor, run: NumberRun, out: Tensor) -> Tensor:
        narrow = torch.int8 if self.levels <= 127 else torch.int16
        return kernels.qsgd_decode(levels.to(narrow), norms, run.block, self.levels, out)

    def packed(self) -> Codec:
        """From 0 to twice the levels, in as many bits as that needs."""
        bits = (2 * self.levels).bit_length()

        def encode(x: Tensor, residual: Tensor | None, run: NumberRun, chance: int) -> tuple[Tensor, Tensor]:
            found, norms = self.encode(x, residual, run, chance)
            return kernels.pack_bits(found.to(torch.int32) + self.levels, bits), norms

        coding = RunCoding(
            encode=encode,
            decode=lambda streams, run, out: self.decode(
                kernels.unpack_bits(streams[0], bits, run.count) - self.levels, streams[1], run, out
            ),
            streams=[(torch.uint8, packed(bits)), (torch.float32, lambda run: run.scales)],
        )
        return coded("qsgd", coding, divided("global", self.bucket))

    def coder(self, form: Form, seed: Seed, carries: bool) -> Coder:
        runs = divided("global", self.bucket)(form)
        coding = RunCoding(
            encode=self.encode,
            decode=lambda streams, run, out: self.decode(streams[0], streams[1], run, out),
            streams=(),
        )

        def encode(vector: Vector, memory: Memory) -> tuple[Vector, Memory]:
            check(vector)
            residual, count = memory
            parts = list[Tensor]()
            for number, run in enumerate(runs):
                kept = run.of(residual) if residual else None
                dtype = form.like.parts[run.part].dtype
                levels, norms = code(coding, run.of(vector), kept, run, chance(seed, count, number), dtype)
                parts += [norms, *written(levels.cpu())]  # codes are written where loops are quick
            return Vector(parts), (residual, count + 1)

        def decode(wire: Vector) -> Vector:
            wanted = [((run.scales, torch.float32), (None, torch.int32), (None, torch.uint8)) for run in runs]
            parts = iter(expect(wire, *(one for three in wanted for one in three)))
            decoded = form.like.map(torch.zeros_like)
            for run in runs:
                norms, head, codes = next(parts), next(parts).cpu(), next(parts).cpu()
                levels = _read(wire, head, codes, run.count, self.levels)
                out = torch.empty(run.count, dtype=torch.float32, device=run.of(decoded).device)
                run.of(decoded).copy_(self.decode(levels.to(out.device), norms.to(out.device), run, out))
            return finite(wire, decoded)

        return Coder(lambda: (zeros(form) if carries else None, 0), encode, decode)


def written(levels: Tensor) -> tuple[Tensor, Tensor]:
    """Signed levels as a head (which way, how many are not 0, bytes of pages) and bytes: levels, gaps, signs."""
    size = levels.int().abs()
    where = levels.nonzero().view(-1)
    there, gaps = size[where], where.diff(prepend=where.new_full((1,), -1))
    many = torch.bincount(size)
    each = torch.arange(1, many.numel() + 1)
    listed = many[1:] @ _bits(each[:-1]) + elias_bits(gaps)
    sparse = bool(listed < many @ _bits(each))
    codes, pages = elias(there if sparse else size + 1)
    apart, gap_pages = elias(gaps) if sparse else elias(gaps[:0])
    signs = kernels.pack_bits((levels[where] < 0).to(torch.int32), 1)
    head = torch.tensor([SPARSE if sparse else DENSE, where.numel()], dtype=torch.int32)
    return torch.cat([head, pages, gap_pages]), torch.cat([codes, apart, signs])


def _bits(numbers: Tensor) -> Tensor:
    """Of the Elias code of each number."""
    return 2 * (torch.frexp(numbers.double()).exponent.long() - 1) + 1


def read(head: Tensor, codes: Tensor, count: int) -> Tensor:
    """The signed levels that were written, of this many numbers."""
    way, many = head[:2].tolist() if head.numel() >= 2 else (-1, -1)
    if way not in (DENSE, SPARSE) or not 0 <= many <= count:
        raise WireError(f"levels of {many} numbers of {count}, written in the way {way}")
    listed = many if way == SPARSE else count
    pages, gap_pages = head[2 : 2 + page_count(listed)], head[2 + page_count(listed) :]
    first, second, third = int(pages.sum()), int(gap_pages.sum()), -(-many // 8)
    if min(first, second) < 0 or first + second + third != codes.numel():
        raise WireError(f"{codes.numel()} bytes of levels where {first} + {second} + {third} belong")
    size = elias_read(codes[:first], pages, listed)
    if way == SPARSE:
        where = elias_read(codes[first : first + second], gap_pages, many).cumsum(0) - 1
        if not rising(where, count):
            raise WireError(f"levels beyond the {count} numbers that there are")
    else:
        size -= 1
        where = size.nonzero().view(-1)
        if where.numel() != many or gap_pages.numel():
            raise WireError(f"{where.numel()} levels that are not 0 where {many} belong")
    signs = 1 - 2 * kernels.unpack_bits(codes[first + second :], 1, many).long()
    levels = torch.zeros(count, dtype=torch.int64, device=codes.device)
    levels[where] = signs * (size if way == SPARSE else size[where])
    return levels


def _read(wire: Vector, head: Tensor, codes: Tensor, count: int, most: int) -> Tensor:
    try:
        levels = read(head, codes, count)
    except WireError as error:
        raise refused(wire, str(error)) from None
    if count and int(levels.abs().max()) > most:
        raise refused(wire, f"a level above {most}")
    return levels


def expected(codec: Qsgd, form: Form) -> float:
    """Bytes for numbers that are normally distributed."""
    runs = divided("global", codec.bucket)(form)
    heads = sum(4 * run.scales + 4 * (2 + page_count(run.count)) for run in runs)
    return heads + sum(_share(codec, min(run.block or run.count, run.count)) * run.count for run in runs)


@cache
def _share(codec: Qsgd, block: int) -> float:
    """Bytes of codes for each number, found by coding a sample; of longer blocks fewer numbers are not 0."""
    longest = 1 << 17
    size = min(block, longest)
    count = size * max(1, 8192 // size)
    sample = torch.randn(count, generator=torch.Generator().manual_seed(0))
    levels, _ = codec.encode(sample, None, NumberRun(0, 0, count, size), 0)
    return written(levels)[1].numel() / count * math.sqrt(size / block)
