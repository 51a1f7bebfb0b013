"""Codecs that write every number with fewer bits, each by itself: narrower floats, fixed point, powers of two."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from covey.errors import PlanError
from covey.exchange import kernels
from covey.exchange.codec import Codec, Coder, Memory, Seed, Sum, Total, expect
from covey.exchange.codec_traits import CodecTraits
from covey.exchange.codecs import sign_sums
from covey.exchange.codecs.coded_runs import RunCoder, RunCoding, coded, divided, finite, packed
from covey.model.flat import Form
from covey.vector import Vector

Rounding = Literal["random", "nearest"]
"""Up or down by chance, so that the mean is right; or to the nearest, which is biased."""


def rounded(rounding: Rounding) -> CodecTraits:
    return CodecTraits(feedback="needed" if rounding == "nearest" else "none")


def cast(name: str, dtype: torch.dtype) -> Codec:
    """A narrower float, rounded to nearest even; sums are rounded again on every hop."""

    def make(form: Form, seed: Seed) -> Coder:
        def decode(wire: Vector) -> Vector:
            parts = expect(wire, *((like.numel(), dtype) for like in form.like.parts))
            pairs = zip(parts, form.like.parts, strict=True)
            return Vector(part.to(like.device, like.dtype, copy=True) for part, like in pairs)

        async def total(vector: Vector, memory: Memory, add: Sum) -> tuple[Vector, Memory]:
            wire = vector.map(lambda part: part.to(dtype))
            await add(wire)
            return decode(wire), memory

        return Coder(
            lambda: None, lambda vector, memory: (vector.map(lambda part: part.to(dtype)), memory), decode, total
        )

    traits = CodecTraits(summable=True, weights=True)
    return Codec(name=name, make=make, nbytes=lambda form: form.like.numel * dtype.itemsize, traits=traits)


def truncated() -> Codec:
    """The upper 16 bits of each float32, so rounded toward zero: BigDL's wire (Dai et al. 2019), not IEEE half."""

    def narrow(part: Tensor) -> Tensor:
        return (part.float().contiguous().view(torch.int32) >> 16).to(torch.int16)

    def make(form: Form, seed: Seed) -> Coder:
        def decode(wire: Vector) -> Vector:
            parts = expect(wire, *((like.numel(), torch.int16) for like in form.like.parts))
            longer = ((part.to(torch.int32) << 16).view(torch.float32) for part in parts)
            pairs = zip(longer, form.like.parts, strict=True)
            return finite(wire, Vector(part.to(like.device, like.dtype) for part, like in pairs))

        return Coder(lambda: None, lambda vector, memory: (vector.map(narrow), memory), decode)

    return Codec(name="truncated", make=make, nbytes=lambda form: 2 * form.like.numel, traits=CodecTraits(weights=True))


def fixed_point(fraction: int, rounding: Rounding) -> Codec:
    """16-bit fixed point in steps of 2^-fraction, saturating (Gupta et al. 2015).

    The steps are the same for all, so sums are sums of whole numbers, in 32 bits.
    """

    def encode(x: Tensor, residual: Tensor | None, run: object, chance: int) -> tuple[Tensor]:
        return (kernels.fixed16_encode(x, residual, fraction, chance if rounding == "random" else None),)

    coding = RunCoding(
        encode=encode,
        decode=lambda streams, run, out: kernels.fixed16_decode(streams[0], fraction, out),
        streams=[(torch.int16, lambda run: run.count)],
    )

    def total(work: RunCoder) -> Total:
        async def total(vector: Vector, memory: Memory, add: Sum) -> tuple[Vector, Memory]:
            wire, memory = work.encode(vector, memory)
            whole = Vector([wire.parts[0].to(torch.int32)])
            await add(whole)
            sums = whole.parts[0].double() * 2.0**-fraction
            pieces = sums.split([run.count for run in work.runs])
            decoded = work.form.like.map(torch.empty_like)
            for run, piece in zip(work.runs, pieces, strict=True):
                run.of(decoded).copy_(piece)
            return decoded, memory

        return total

    return coded(
        "fixed16", coding, divided("global"), rounded(rounding), total=total,
        summed=lambda form, workers: 4 * form.like.numel,
    )  # fmt: skip


def two_bit(threshold: float) -> Codec:
    """At most one +threshold or -threshold per number and step, four to a byte; what is left waits (MXNet)."""
    coding = RunCoding(
        encode=lambda x, residual, run, chance: (kernels.twobit_encode(x, residual, threshold),),
        decode=lambda streams, run, out: kernels.twobit_decode(streams[0], threshold, out),
        streams=[(torch.uint8, packed(2))],
    )

    def signs(x: Tensor, residual: Tensor | None, run: object, chance: int, scale: Tensor) -> Tensor:
        return kernels.twobit_encode(x, residual, threshold)

    return coded(
        "twobit", coding, divided("global"), CodecTraits(feedback="needed"),
        total=sign_sums.sum_of_signs(signs, sign_sums.fixed(threshold)),
        summed=sign_sums.nbytes(divided("global"), scales=False),
    )  # fmt: skip


def eight_bit(block: int, rounding: Rounding) -> Codec:
    """Whole numbers from -127 to 127, and a scale for every block of them."""
    return coded(
        "int8",
        RunCoding(
            encode=lambda x, residual, run, chance: kernels.int8_encode(
                x, residual, run.block, chance if rounding == "random" else None
            ),
            decode=lambda streams, run, out: kernels.int8_decode(streams[0], streams[1], run.block, out),
            streams=[(torch.int8, lambda run: run.count), (torch.float32, lambda run: run.scales)],
        ),
        divided("global", block),
        rounded(rounding),
    )


def powers_of_two() -> Codec:
    """Each number becomes one of its two neighbouring powers of two, by chance: 9 bits, unbiased (Horvath 2019)."""
    return coded(
        "natural",
        RunCoding(
            encode=lambda x, residual, run, chance: kernels.natural_encode(x, residual, chance),
            decode=lambda streams, run, out: kernels.natural_decode(streams[0], streams[1], out),
            streams=[(torch.uint8, lambda run: run.count), (torch.uint8, packed(1))],
        ),
        divided("global"),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Fp16:
    """IEEE half precision; numbers beyond 65504 become infinite."""

    def codec(self) -> Codec:
        return cast("fp16", torch.float16)


@dataclass(frozen=True, kw_only=True, slots=True)
class Bf16:
    """The upper half of float32, rounded to nearest even."""

    def codec(self) -> Codec:
        return cast("bf16", torch.bfloat16)


@dataclass(frozen=True, kw_only=True, slots=True)
class Truncated:
    """The upper half of float32, rounded toward zero (BigDL)."""

    def codec(self) -> Codec:
        return truncated()


@dataclass(frozen=True, kw_only=True, slots=True)
class Fixed16:
    """16-bit fixed point with this many bits behind the point, rounded by chance, saturating (Gupta et al. 2015)."""

    fraction: int = 14
    rounding: Rounding = "random"

    def codec(self) -> Codec:
        if not 0 <= self.fraction <= 30:
            raise PlanError(f"fixed16(fraction={self.fraction}): 0 to 30 bits behind the point")
        return fixed_point(self.fraction, self.rounding)


@dataclass(frozen=True, kw_only=True, slots=True)
class Int8:
    """Eight bits and a scale for every `block` numbers; 0: one scale for all."""

    block: int = 1024
    rounding: Rounding = "random"

    def codec(self) -> Codec:
        if self.block < 0:
            raise PlanError(f"int8(block={self.block}): 1 or more numbers share a scale, or 0 for all of them")
        return eight_bit(self.block, self.rounding)


@dataclass(frozen=True, kw_only=True, slots=True)
class Natural:
    """Powers of two by chance, in 9 bits (Horvath et al. 2019)."""

    def codec(self) -> Codec:
        return powers_of_two()


@dataclass(frozen=True, kw_only=True, slots=True)
class TwoBit:
    """Plus or minus a threshold, or nothing, in two bits, with error feedback (MXNet)."""

    threshold: float = 0.5

    def codec(self) -> Codec:
        if not self.threshold > 0:
            raise PlanError(f"twobit(threshold={self.threshold}): must be more than 0")
        return two_bit(self.threshold)
