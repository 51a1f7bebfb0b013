"""Codecs that write every number with fewer bits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from covey.errors import PlanError, WireError
from covey.exchange.codec import Codec, Coder, Memory, Sum
from covey.flat import Form
from covey.vector import Vector


def finite(wire: Vector, decoded: Vector) -> Vector:
    """Refuse what only shows itself when decoded; elsewhere the wire's own floats are looked at when they arrive."""
    if not decoded.finite():
        raise WireError(f"{wire.origin or 'a peer'} sent a gradient with NaN or infinite numbers: it has diverged")
    return decoded


def each(
    name: str, bits: float, encode: Callable[[Tensor], Tensor], decode: Callable[[Tensor, Tensor], Tensor]
) -> Codec:
    """A codec that treats every number alone and remembers nothing; `decode` is shown a part of the same length."""

    def made(form: Form, seed: int) -> Coder:
        def back(wire: Vector) -> Vector:
            return finite(wire, Vector(decode(w, part) for w, part in zip(wire.parts, form.like.parts, strict=True)))

        return Coder(None, lambda vector, memory: (vector.map(encode), None), back)

    return Codec(name=name, made=made, nbytes=lambda form: sum(-(-p.numel() * bits // 8) for p in form.like.parts))


def cast(name: str, dtype: torch.dtype) -> Codec:
    """A narrower float, rounded to nearest even; sums are rounded again on every hop."""

    def made(form: Form, seed: int) -> Coder:
        def decode(wire: Vector) -> Vector:
            return Vector(w.to(part.dtype) for w, part in zip(wire.parts, form.like.parts, strict=True))

        async def total(vector: Vector, memory: Memory, add: Sum) -> tuple[Vector, Memory]:
            wire = vector.map(lambda part: part.to(dtype))
            await add(wire)
            return decode(wire), None

        return Coder(None, lambda vector, memory: (vector.map(lambda part: part.to(dtype)), None), decode, total)

    size = torch.empty((), dtype=dtype).element_size()
    return Codec(name=name, made=made, nbytes=lambda form: form.like.numel * size, adds=True)


def truncated() -> Codec:
    """The upper 16 bits of each float32, so rounded toward zero: BigDL's wire (Dai et al. 2019), not IEEE half."""

    def encode(part: Tensor) -> Tensor:
        return (part.float().contiguous().view(torch.int32) >> 16).to(torch.int16)

    def decode(wire: Tensor, part: Tensor) -> Tensor:
        return (wire.to(torch.int32) << 16).view(torch.float32).to(part.dtype)

    return each("truncated", 16, encode, decode)


def two_bit(threshold: float) -> Codec:
    """At most one +threshold or -threshold per number and step, four to a byte; what is left waits (MXNet)."""

    def encode(part: Tensor) -> Tensor:
        codes = torch.zeros(part.numel() + -part.numel() % 4, dtype=torch.uint8)
        codes[: part.numel()][part >= threshold] = 3
        codes[: part.numel()][part <= -threshold] = 2
        quads = codes.view(-1, 4)
        return (quads[:, 0] << 6) | (quads[:, 1] << 4) | (quads[:, 2] << 2) | quads[:, 3]

    def decode(wire: Tensor, part: Tensor) -> Tensor:
        codes = torch.stack([(wire >> shift) & 3 for shift in (6, 4, 2, 0)], dim=1).view(-1)[: part.numel()]
        levels = torch.tensor([0.0, 0.0, -threshold, threshold], dtype=part.dtype)
        return levels[codes.long()]

    codec = each("twobit", 2, encode, decode)
    return Codec(name=codec.name, made=codec.made, nbytes=codec.nbytes, feedback=True)


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
class TwoBit:
    """Plus or minus a threshold, or nothing, in two bits, with error feedback (MXNet)."""

    threshold: float = 0.5

    def codec(self) -> Codec:
        if not self.threshold > 0:
            raise PlanError(f"twobit(threshold={self.threshold}): must be more than 0")
        return two_bit(self.threshold)
