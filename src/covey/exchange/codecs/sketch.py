"""Sketches of updates (Konecny et al. 2016): some of the numbers, rotated at random, in a few bits each; unbiased."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from covey.errors import PlanError
from covey.exchange.codec import Codec, Coder, Memory, Seed, check, expect, refused
from covey.exchange.codecs.random_k import places
from covey.exchange.codecs.sparse import of
from covey.model.flat import Form
from covey.vector import Vector

BLOCK = 1024  # numbers that are rotated together, and have one pair of ends
BITS = (1, 2, 4, 8)


def rotated(numbers: Tensor, signs: Tensor) -> Tensor:
    """Each row turned by Hadamard's matrix after random signs: an orthogonal map, which evens out the sizes."""
    return hadamard(numbers * signs)


def turned_back(numbers: Tensor, signs: Tensor) -> Tensor:
    """What was rotated."""
    return hadamard(numbers) * signs


def hadamard(rows: Tensor) -> Tensor:
    """Every row times Hadamard's matrix of its length, a power of two, scaled so that it is its own inverse."""
    count, width = rows.shape
    step = 1
    while step < width:
        pairs = rows.reshape(count, -1, 2, step)
        rows = torch.stack([pairs[:, :, 0] + pairs[:, :, 1], pairs[:, :, 0] - pairs[:, :, 1]], 2).reshape(count, width)
        step *= 2
    return rows / math.sqrt(width)


class Sketching:
    """Sketches of vectors of one form."""

    def __init__(self, form: Form, seed: Seed, bits: int, keep: float, rotate: bool) -> None:
        self.form, self.seed, self.bits, self.rotate = form, seed, bits, rotate
        self.counts = [of(keep, like.numel()) for like in form.like.parts]

    def encode(self, vector: Vector, memory: Memory) -> tuple[Vector, Memory]:
        check(vector)
        chance = (self.seed + (memory << 8)) % (1 << 62)
        wire = [torch.tensor([chance])]
        for index, part in enumerate(vector.parts):
            wire += self._packed(part.detach(), self.counts[index], chance + index)
        return Vector(wire), memory + 1

    def _packed(self, part: Tensor, count: int, chance: int) -> list[Tensor]:
        if not count:
            return [part.new_zeros(0, dtype=torch.uint8), part.new_zeros(0, dtype=torch.float32)]
        where = places(chance, count, part.numel()).to(part.device)
        rows = _rows(part[where].double() * (part.numel() / max(1, count)))
        if self.rotate:
            rows = rotated(rows, _signs(chance, rows))
        rows = rows.float()
        low, high = rows.amin(1, keepdim=True), rows.amax(1, keepdim=True)
        top = (1 << self.bits) - 1
        exact = (rows - low).double() * (top / (high - low).double().clamp(min=1e-300))
        drawn = torch.rand(rows.shape, generator=_generator(chance, "round"), dtype=torch.float64)
        levels = (exact + drawn.to(part.device)).floor_().clamp_(0, top).to(torch.uint8)
        return [_folded(levels.reshape(-1), self.bits), torch.cat([low, high], 1).reshape(-1)]

    def decode(self, wire: Vector) -> Vector:
        sizes = [padded(count) for count in self.counts]
        wanted: list[tuple[int | None, torch.dtype]] = [(1, torch.int64)]
        for size in sizes:
            wanted += [(size * self.bits // 8, torch.uint8), (2 * (size // width(size) if size else 0), torch.float32)]
        head, *streams = expect(wire, *wanted)
        chance = int(head) % (1 << 62)
        if not all(bool(ends.isfinite().all()) for ends in streams[1::2]):
            raise refused(wire, "ends that are no numbers")
        parts = zip(self.form.like.parts, self.counts, streams[::2], streams[1::2], strict=True)
        return Vector(
            self._spread(like, count, chance + index, levels.to(like.device), ends.to(like.device))
            for index, (like, count, levels, ends) in enumerate(parts)
        )

    def _spread(self, like: Tensor, count: int, chance: int, packed: Tensor, ends: Tensor) -> Tensor:
        out = torch.zeros_like(like)
        if count:
            low, high = ends.double().view(-1, 2, 1).unbind(1)
            levels = _unfolded(packed, self.bits).double().view(len(low), -1)
            rows = low + levels * ((high - low) / ((1 << self.bits) - 1))
            rows = turned_back(rows, _signs(chance, rows)) if self.rotate else rows
            most = torch.finfo(like.dtype).max
            numbers = rows.reshape(-1)[:count].clamp(-most, most).to(like.dtype)
            out[places(chance, count, like.numel()).to(like.device)] = numbers
        return out


def width(count: int) -> int:
    """Numbers in a row: a power of two, 8 or more, so that rows end with a byte."""
    return min(BLOCK, max(8, 1 << (count - 1).bit_length()))


def padded(count: int) -> int:
    """The numbers of all rows."""
    return -(-count // width(count)) * width(count) if count else 0


def _rows(numbers: Tensor) -> Tensor:
    """In rows, the last one filled up with zeros."""
    size = padded(numbers.numel())
    filled = torch.cat([numbers, numbers.new_zeros(size - numbers.numel())])
    return filled.view(-1, width(numbers.numel()) if size else 8)


def _generator(chance: int, what: str) -> torch.Generator:
    return torch.Generator().manual_seed((chance * 4 + ("signs", "round").index(what)) % (1 << 63))


def _signs(chance: int, rows: Tensor) -> Tensor:
    drawn = torch.randint(2, (rows.shape[1],), generator=_generator(chance, "signs"))
    return (2 * drawn - 1).to(rows)


def _folded(levels: Tensor, bits: int) -> Tensor:
    """Several levels in a byte."""
    shifts = torch.arange(0, 8, bits, device=levels.device, dtype=torch.uint8)
    return (levels.view(-1, 8 // bits) << shifts).sum(1, dtype=torch.uint8)


def _unfolded(packed: Tensor, bits: int) -> Tensor:
    shifts = torch.arange(0, 8, bits, device=packed.device, dtype=torch.uint8)
    return ((packed[:, None] >> shifts) & ((1 << bits) - 1)).reshape(-1)


def sketch_bytes(form: Form, bits: int, keep: float) -> float:
    """The seed; of each part its levels, and the ends of its rows."""
    sizes: Sequence[int] = [padded(of(keep, part.numel())) for part in form.like.parts]
    return 8 + sum(size * bits // 8 + 8 * (size // width(size)) for size in sizes if size)


@dataclass(frozen=True, kw_only=True, slots=True)
class Sketch:
    """Some of the numbers, rotated at random, in a few bits each; unbiased (Konecny et al. 2016)."""

    bits: int = 8  # of a number: 1, 2, 4 or 8
    keep: float = 0.1  # which part of the numbers is sent
    rotate: bool = True  # so that one large number does not widen the steps of the others

    def codec(self) -> Codec:
        if self.bits not in BITS:
            raise PlanError(f"sketch(bits={self.bits}): 1, 2, 4 or 8")
        if not 0 < self.keep <= 1:
            raise PlanError(f"sketch(keep={self.keep}): above 0, at most 1")

        def make(form: Form, seed: Seed) -> Coder:
            sketching = Sketching(form, seed, self.bits, self.keep, self.rotate)
            return Coder(lambda: 0, sketching.encode, sketching.decode)

        return Codec(name="sketch", make=make, nbytes=lambda form: sketch_bytes(form, self.bits, self.keep))
