"""Codecs that are plain to see through, for tests of what strategies do with any codec."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from covey.exchange.codec import Codec, Coder, Memory, Seed, Sum
from covey.exchange.codec_traits import CodecTraits
from covey.exchange.codecs.by_name import CODECS
from covey.model.flat import Form
from covey.vector import Vector


@dataclass(frozen=True, kw_only=True, slots=True)
class Exact:
    """Numbers as they are, which travel as any codec's do; `adds` says whether by sums."""

    adds: bool = False

    def codec(self) -> Codec:
        def make(form: Form, seed: Seed) -> Coder:
            async def total(vector: Vector, memory: Memory, add: Sum) -> tuple[Vector, Memory]:
                summed = vector.clone()
                await add(summed)
                return summed, None

            return Coder(lambda: None, lambda v, memory: (v.clone(), None), Vector.clone, total if self.adds else None)

        traits = CodecTraits(summable=self.adds, feedback="none" if self.adds else "needed", weights=self.adds)
        return Codec(name="exact", make=make, nbytes=lambda form: form.like.nbytes, traits=traits)


@dataclass(frozen=True, kw_only=True, slots=True)
class Few:
    """The largest numbers of each part: the plainest top-k."""

    density: float = 0.1

    def codec(self) -> Codec:
        def few(part: Tensor) -> tuple[Tensor, Tensor]:
            where = part.abs().topk(max(1, round(self.density * part.numel())) if part.numel() else 0).indices
            return where.int(), part[where]

        def make(form: Form, seed: Seed) -> Coder:
            def encode(vector: Vector, memory: Memory) -> tuple[Vector, Memory]:
                return Vector(tensor for part in vector.parts for tensor in few(part)), None

            def decode(wire: Vector) -> Vector:
                found = form.like.map(torch.zeros_like)
                for part, where, what in zip(found.parts, wire.parts[::2], wire.parts[1::2], strict=True):
                    part[where.long()] = what.to(part.dtype)
                return found

            return Coder(lambda: None, encode, decode)

        def nbytes(form: Form) -> float:
            return sum(round(self.density * p.numel()) * (4 + p.element_size()) for p in form.like.parts)

        return Codec(name="few", make=make, nbytes=nbytes, traits=CodecTraits(feedback="needed"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Rough:
    """Right on average, and far off each time: one of 50 numbers, 50 times as large."""

    def codec(self) -> Codec:
        def make(form: Form, seed: Seed) -> Coder:
            def encode(vector: Vector, memory: Memory) -> tuple[Vector, Memory]:
                chance = torch.Generator().manual_seed((seed + memory) % 2**63)
                drawn = vector.map(lambda p: p * 50 * (torch.rand(p.shape, generator=chance) < 0.02))
                return drawn, memory + 1

            return Coder(lambda: 0, encode, Vector.clone)

        return Codec(name="rough", make=make, nbytes=lambda form: form.like.nbytes)


PLAIN: dict[str, Any] = {"exact": Exact, "few": Few, "rough": Rough}


@contextmanager
def plain_codecs() -> Iterator[None]:
    """SPECs may name them, too."""
    known: dict[str, Any] = CODECS  # type: ignore[assignment]  # which nobody else may write
    known.update(PLAIN)
    try:
        yield
    finally:
        for name in PLAIN:
            del known[name]
