"""Numbers chosen by chance, the same places on all ranks: so they can be added up, and no place travels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from covey.exchange.codec import Codec, Coder, Memory, Seed, Sum, check, expect, fusing, zeros
from covey.exchange.codec_traits import CodecTraits
from covey.exchange.codecs.sparse import check_density, of
from covey.model.flat import Form
from covey.vector import Vector


def places(seed: int, count: int, length: int) -> Tensor:
    """`count` of `length` places in order, each set of them as likely as any other."""
    chance = torch.Generator().manual_seed(seed)
    if 4 * count >= length:
        return torch.randperm(length, generator=chance)[:count].sort().values
    drawn = torch.randint(length, (count + count // 4 + 16,), generator=chance)
    while True:
        found, first = _distinct(drawn)
        if found.numel() >= count:  # the first `count` different ones
            return found[first.argsort()[:count]].sort().values
        drawn = torch.cat([drawn, torch.randint(length, (count,), generator=chance)])


def _distinct(drawn: Tensor) -> tuple[Tensor, Tensor]:
    """The different numbers, and where each was drawn first."""
    ordered, where = drawn.sort(stable=True)
    fresh = torch.ones_like(ordered, dtype=torch.bool)
    fresh[1:] = ordered[1:] != ordered[:-1]
    return ordered[fresh], where[fresh]


class Draw:
    """Numbers of vectors of one form, chosen by chance. The seed of the choice travels, not the places.

    With error feedback numbers are sent as they are, and the rest waits; without it an unbiased one makes up for what
    is dropped.
    """

    def __init__(self, form: Form, seed: Seed, density: float, carries: bool, unbiased: bool) -> None:
        self.form, self.seed, self.carries = form, seed, carries
        self.counts = [of(density, like.numel()) for like in form.like.parts]
        scaled = unbiased and not carries
        self.factors = [
            like.numel() / max(1, n) if scaled else 1 for like, n in zip(form.like.parts, self.counts, strict=True)
        ]

    def start(self) -> Memory:
        return zeros(self.form) if self.carries else None, 0

    def places(self, chance: int) -> list[Tensor]:
        sizes = enumerate(zip(self.counts, self.form.like.parts, strict=True))
        return [places(chance + index, count, like.numel()).to(like.device) for index, (count, like) in sizes]

    def take(self, vector: Vector, memory: Memory) -> tuple[int, list[Tensor], Memory]:
        """The seed of the choice, what is chosen, and the memory."""
        check(vector)
        residual, count = memory
        chance = (self.seed.common + (count << 8)) % (1 << 62)
        wanted = residual.add_(vector) if residual else vector
        sent = []
        for index, where in enumerate(self.places(chance)):
            numbers = wanted.parts[index][where] * self.factors[index]
            sent.append(numbers.to(self.form.like.parts[index].dtype))
            if residual:
                residual.parts[index][where] -= sent[-1]
        return chance, sent, (residual, count + 1)

    def spread(self, chance: int, numbers: Sequence[Tensor]) -> Vector:
        decoded = self.form.like.map(torch.zeros_like)
        for out, where, found in zip(decoded.parts, self.places(chance), numbers, strict=True):
            out[where] = found.to(out.device)
        return decoded

    def encode(self, vector: Vector, memory: Memory) -> tuple[Vector, Memory]:
        chance, sent, memory = self.take(vector, memory)
        return Vector([torch.tensor([chance]), *sent]), memory

    def decode(self, wire: Vector) -> Vector:
        sizes = ((count, like.dtype) for count, like in zip(self.counts, self.form.like.parts, strict=True))
        head, *numbers = expect(wire, (1, torch.int64), *sizes)
        return self.spread(int(head) % (1 << 62), numbers)

    async def total(self, vector: Vector, memory: Memory, add: Sum) -> tuple[Vector, Memory]:
        chance, sent, memory = self.take(vector, memory)
        together = Vector(sent)
        await add(together)
        return self.spread(chance, together.parts), memory


def any_of(density: float, unbiased: bool) -> Codec:
    """A share of the numbers, chosen by chance (Stich et al. 2018)."""

    def make(form: Form, seed: Seed, carries: bool) -> Coder:
        draw = Draw(form, seed, density, carries, unbiased)
        return Coder(draw.start, draw.encode, draw.decode, draw.total)

    def summed(form: Form, workers: int = 1) -> float:
        return sum(of(density, part.numel()) * part.element_size() for part in form.like.parts)

    traits = CodecTraits(summable=True, feedback="none" if unbiased else "needed")
    return fusing("randomk", make, lambda form: 8 + summed(form), traits, summed)


@dataclass(frozen=True, kw_only=True, slots=True)
class RandomK:
    """Numbers chosen by chance, the same places on all ranks; the rest waits, or is made up for (Stich et al. 2018)."""

    density: float = 0.01
    unbiased: bool = False  # without error feedback: what is sent counts for what is not

    def codec(self) -> Codec:
        check_density("randomk", self.density)
        return any_of(self.density, self.unbiased)
