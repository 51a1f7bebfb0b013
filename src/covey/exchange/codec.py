"""What a vector looks like on the wire: a codec is three functions and a name; features wrap codecs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from covey.errors import PlanError, WireError
from covey.vector import Vector

Memory = Any


class Codec(NamedTuple):
    """`encode` gives what travels and the memory for the next time; `decode` brings it back in the shape of `like`."""

    name: str
    init: Callable[[Vector], Memory]
    encode: Callable[[Vector, Memory], tuple[Vector, Memory]]
    decode: Callable[[Vector, Vector], Vector]


def stateless(name: str, encode: Callable[[Tensor], Tensor], decode: Callable[[Tensor, Tensor], Tensor]) -> Codec:
    """A codec that treats each part alone and remembers nothing."""
    return Codec(
        name,
        lambda like: None,
        lambda vector, memory: (vector.map(encode), None),
        lambda wire, like: Vector(decode(w, part) for w, part in zip(wire.parts, like.parts, strict=True)),
    )


dense = Codec("dense", lambda like: None, lambda vector, memory: (vector, None), lambda wire, like: wire)
"""Numbers as they are."""


def cast(name: str, dtype: torch.dtype) -> Codec:
    """A narrower float, rounded to nearest even."""
    return stateless(name, lambda part: part.to(dtype), lambda wire, part: wire.to(part.dtype))


def truncated() -> Codec:
    """The upper 16 bits of each float32, so rounded toward zero: BigDL's wire (Dai et al. 2019), not IEEE half."""

    def encode(part: Tensor) -> Tensor:
        return (part.float().contiguous().view(torch.int32) >> 16).to(torch.int16)

    def decode(wire: Tensor, part: Tensor) -> Tensor:
        return (wire.to(torch.int32) << 16).view(torch.float32).to(part.dtype)

    codec = stateless("truncated", encode, decode)
    return codec._replace(decode=lambda wire, like: _finite(codec.decode(wire, like), wire))


def _finite(vector: Vector, wire: Vector) -> Vector:
    """Refuse what only shows itself when decoded; elsewhere the wire's own floats are looked at when they arrive."""
    if not vector.finite():
        raise WireError(f"{wire.origin or 'a peer'} sent a gradient with NaN or infinite numbers: it has diverged")
    return vector


def error_feedback(inner: Codec) -> Codec:
    """Carry what compression dropped into the next time."""

    def encode(vector: Vector, memory: Memory) -> tuple[Vector, Memory]:
        dropped, inside = memory
        wanted = vector.clone().add_(dropped)
        wire, inside = inner.encode(wanted, inside)
        return wire, (wanted.add_(inner.decode(wire, vector), alpha=-1), inside)

    return Codec(inner.name, lambda like: (like.map(torch.zeros_like), inner.init(like)), encode, inner.decode)


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

    return error_feedback(stateless("twobit", encode, decode))


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


CODECS: Mapping[str, type[Any]] = {"fp16": Fp16, "bf16": Bf16, "truncated": Truncated, "twobit": TwoBit}
