"""Strom's threshold codec (2015): a word of 32 bits, index and sign, for each value that reaches the threshold.

The decoded numbers are those of `twobit`; only the coding differs. DL4J lets the threshold follow what is sent, and
sends two bits for each number where words would be longer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from covey.errors import PlanError
from covey.exchange import kernels
from covey.exchange.codec import Codec, Coder, Memory, Seed, check, expect, fusing, refused, zeros
from covey.exchange.codec_traits import CodecTraits
from covey.exchange.codecs.coded_runs import NumberRun, RunCoding, code, divided, finite
from covey.exchange.codecs.sparse_numbers import check_places
from covey.model.flat import Form
from covey.vector import Vector

STEP = 2 ** (1 / 20)  # by which DL4J's threshold grows or shrinks
LEAST, MOST = torch.finfo(torch.float32).tiny, torch.finfo(torch.float32).max  # as which a threshold travels
DENSE = 16  # more than one number of this many: two bits for each are shorter


@dataclass(frozen=True, kw_only=True, slots=True)
class Strom:
    """Plus or minus a threshold for each number that has gathered it, as a word with its place (Strom 2015; DL4J)."""

    threshold: float = 1e-4
    adaptive: bool = True  # so that the share of numbers sent stays between low and high
    low: float = 1e-4
    high: float = 1e-2

    def codec(self) -> Codec:
        if not LEAST <= self.threshold <= MOST:
            raise PlanError(f"strom(threshold={self.threshold:g}): must be more than 0, and a number of 32 bits")
        if not 0 < self.low <= self.high <= 1:
            raise PlanError(f"strom(low={self.low:g}, high={self.high:g}): shares of all numbers, 0 < low <= high <= 1")

        def nbytes(form: Form) -> float:
            words = math.sqrt(self.low * self.high) * form.like.numel
            return 4 * words + 4 * sum(1 for part in form.like.parts if part.numel())

        return fusing("strom", self.coder, nbytes, CodecTraits(feedback="needed"))

    def coder(self, form: Form, seed: Seed, carries: bool) -> Coder:
        runs = divided("global")(form)

        def encode(vector: Vector, memory: Memory) -> tuple[Vector, Memory]:
            check(vector)
            residual, thresholds = memory
            parts, after = [], []
            for run, threshold in zip(runs, thresholds, strict=True):
                dtype = form.like.parts[run.part].dtype
                codes = _codes(run.of(vector), run.of(residual) if residual else None, run, threshold, dtype)
                count = _count(codes)
                parts += [torch.tensor([threshold], dtype=torch.float32)]
                parts += [codes if count * DENSE > run.count else _words(codes)]
                moved = count > 0 or bool(run.of(vector).any())
                after.append(self.next(threshold, count / run.count) if moved else threshold)
            return Vector(parts), (residual, after)

        def decode(wire: Vector) -> Vector:
            if len(wire.parts) != 2 * len(runs):
                raise refused(wire, f"{wire} for {len(runs)} parts")
            decoded = form.like.map(torch.zeros_like)
            for run, head, body in zip(runs, wire.parts[::2], wire.parts[1::2], strict=True):
                words = (None, torch.int32) if body.dtype == torch.int32 else (-(-run.count // 4), torch.uint8)
                expect(Vector([head, body], wire.origin), (1, torch.float32), words)
                _put(wire, run.of(decoded), float(head), body)
            return finite(wire, decoded)

        return Coder(lambda: (zeros(form) if carries else None, [self.threshold] * len(runs)), encode, decode)

    def next(self, threshold: float, share: float) -> float:
        """The threshold after this much was sent with this one."""
        if not self.adaptive or self.low <= share <= self.high:
            return threshold
        return min(threshold * STEP, MOST) if share > self.high else max(threshold / STEP, LEAST)


def _codes(x: Tensor, residual: Tensor | None, run: NumberRun, threshold: float, dtype: torch.dtype) -> Tensor:
    """Two bits for each number, as `twobit` has them."""
    coding = RunCoding(
        encode=lambda x, residual, run, chance: (kernels.twobit_encode(x, residual, threshold),),
        decode=lambda streams, run, out: kernels.twobit_decode(streams[0], threshold, out),
        streams=(),
    )
    return code(coding, x, residual, run, 0, dtype)[0]


SIGNS = torch.tensor([sum(byte >> shift & 3 >= 2 for shift in (6, 4, 2, 0)) for byte in range(256)], dtype=torch.uint8)
"""How many of the four codes in a byte are a sign."""


def _count(codes: Tensor) -> int:
    return int(SIGNS.to(codes.device)[codes.int()].sum())


def _words(codes: Tensor) -> Tensor:
    """For each sign its place in the upper 31 bits, and a 1 below where it is negative."""
    where = codes.nonzero().view(-1)
    quads = codes[where].view(-1, 1) >> torch.tensor([6, 4, 2, 0], dtype=torch.uint8, device=codes.device) & 3
    places = 4 * where.view(-1, 1) + torch.arange(4, device=codes.device)
    there = quads >= 2
    return ((places[there] << 1) | (quads[there] == 2)).to(torch.int32)


def _put(wire: Vector, out: Tensor, threshold: float, body: Tensor) -> None:
    """Write plus or minus the threshold to where the words, or the two bits of each number, say."""
    if not 0 < threshold < math.inf:
        raise refused(wire, f"a threshold of {threshold:g}")
    if body.dtype == torch.uint8:
        signs = torch.empty(out.numel(), dtype=torch.float32, device=out.device)
        out.copy_(kernels.twobit_decode(body.to(out.device), threshold, signs))
        return
    words = body.long() & 0xFFFFFFFF
    places = words >> 1
    check_places(wire, places, out.numel())
    out[places.to(out.device)] = torch.where(words & 1 == 1, -threshold, threshold).to(out.device, out.dtype)
