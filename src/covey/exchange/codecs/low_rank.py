"""PowerSGD (Vogels et al. 2019): a matrix travels as two thin ones, which can be added up on their way."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from covey.errors import PlanError
from covey.exchange.codec import Codec, Coder, Memory, Seed, Sum, check, expect, fusing, wide, zeros
from covey.exchange.codec_traits import CodecTraits
from covey.exchange.codecs.coded_runs import NumberRun, Raws, finite
from covey.exchange.codecs.wrappers import warmed_up
from covey.model.flat import Form
from covey.vector import Vector


class Matrix(NamedTuple):
    """A layer as a matrix, and how many columns its factors have."""

    run: NumberRun
    rows: int
    columns: int
    rank: int

    def of(self, vector: Vector) -> Tensor:
        return self.run.of(vector).view(self.rows, self.columns)

    def length(self, side: int) -> int:
        """Of a factor's columns: the left one, or the right one."""
        return self.columns if side else self.rows


def divided(form: Form, rank: int, saving: float) -> tuple[list[Matrix], list[NumberRun]]:
    """The matrices that become this many times smaller, and what travels as it is."""
    matrices, raws = [], []
    for part, layers in enumerate(form.layers):
        for layer in layers:
            rows, columns = layer.shape[0] if layer.shape else 1, math.prod(layer.shape[1:])
            few = min(rank, rows, columns)
            if len(layer.shape) > 1 and few and rows * columns >= saving * few * (rows + columns):
                matrices.append(Matrix(NumberRun(part, layer.start, layer.stop), rows, columns, few))
            else:
                raws.append(NumberRun(part, layer.start, layer.stop, raw=True))
    return matrices, raws


class LowRank:
    """Power iteration on the matrices of vectors of one form.

    It remembers what was dropped, the factors of the last time, and how many times there were. In a sum all find the
    same factors, those of the sum of all matrices. Alone, as where gradients go to a server, a worker finds its own.
    """

    def __init__(self, form: Form, seed: Seed, settings: PowerSgd, carries: bool) -> None:
        self.form, self.seed, self.carries, self.alternating = form, seed, carries, settings.alternating
        self.matrices, raws = divided(form, settings.rank, settings.saving)
        self.raws = Raws(form, raws)
        self.dtype = factor_type(form)

    def start(self) -> Memory:
        lefts, rights = ([self.drawn(one, side) for one in self.matrices] for side in (0, 1))
        return zeros(self.form) if self.carries else None, lefts, rights, 0

    def drawn(self, one: Matrix, side: int) -> Tensor:
        """Normal numbers to begin with, the same on all ranks."""
        place = (one.run.part << 40) + 2 * one.run.start + side
        chance = torch.Generator().manual_seed((self.seed.common + place) % (1 << 63))
        drawn = torch.randn(one.length(side), one.rank, generator=chance, dtype=self.dtype)
        return drawn.to(self.form.like.parts[one.run.part].device)

    async def meet(self, vector: Vector, memory: Memory, add: Sum) -> tuple[Memory, list[Tensor]]:
        """Find the factors of the sum of everybody's vector, which the memory then holds; and sums of raw numbers."""
        check(vector)
        residual, lefts, rights, count = memory
        wanted = residual.add_(vector) if residual else vector.map(lambda part: part.to(wide(part.dtype)))
        mats = [one.of(wanted).to(self.dtype) for one in self.matrices]
        one, raw = torch.ones(1, dtype=torch.int32), self.raws.of(vector)
        rest = [one, *raw]
        if not self.alternating or count % 2 == 0:
            rights = [orthonormal(q) for q in rights] if self.alternating else rights
            lefts = await self.summed([m @ q for m, q in zip(mats, rights, strict=True)], rest, add)
            rest = []
        if not self.alternating or count % 2 == 1:
            lefts = [orthonormal(p) for p in lefts]
            rights = await self.summed([m.T @ p for m, p in zip(mats, lefts, strict=True)], rest, add)
        if residual:
            self.drop(residual, self.product(lefts, rights), int(one))
        return (residual, lefts, rights, count + 1), raw

    async def summed(self, factors: list[Tensor], rest: list[Tensor], add: Sum) -> list[Tensor]:
        """The factors' sums over the group; the rest is added up in place."""
        flat = self.flat(factors)
        await add(Vector([flat, *rest]))
        return [piece.view(f.shape) for piece, f in zip(flat.split([f.numel() for f in factors]), factors, strict=True)]

    def flat(self, factors: Sequence[Tensor]) -> Tensor:
        found = [factor.reshape(-1) for factor in factors]
        return torch.cat(found) if found else torch.empty(0, dtype=self.dtype)

    def product(self, lefts: Sequence[Tensor], rights: Sequence[Tensor]) -> list[Tensor]:
        """The matrices, in the types that they are of."""
        pairs = zip(self.matrices, lefts, rights, strict=True)
        return [(p @ q.T).to(self.form.like.parts[one.run.part].dtype) for one, p, q in pairs]

    def drop(self, residual: Vector, told: Sequence[Tensor], group: int) -> None:
        """What was told of the mean of all leaves everybody's residual, and what travelled as it was."""
        for one, product in zip(self.matrices, told, strict=True):
            one.of(residual).sub_(product, alpha=1 / group)
        for runs in self.raws.parts.values():
            for run in runs:
                run.of(residual).zero_()

    def together(self, told: Sequence[Tensor], raw: Sequence[Tensor]) -> Vector:
        decoded = self.form.like.map(torch.empty_like)
        for one, product in zip(self.matrices, told, strict=True):
            one.of(decoded).copy_(product)
        self.raws.put(decoded, raw)
        return decoded

    def encode(self, vector: Vector, memory: Memory) -> tuple[Vector, Memory]:
        alone = self.meet(vector, memory, _nobody_else)
        try:
            alone.send(None)
        except StopIteration as found:
            memory, raw = found.value
            return Vector([self.flat([*memory[1], *memory[2]]), *raw]), memory
        raise AssertionError("alone, nobody is waited for")

    def decode(self, wire: Vector) -> Vector:
        sizes = [one.length(side) * one.rank for side in (0, 1) for one in self.matrices]
        factors, *raw = expect(wire, (sum(sizes), self.dtype), *self.raws.sizes)
        pieces = [piece.view(-1, one.rank) for piece, one in zip(factors.split(sizes), self.matrices * 2, strict=True)]
        return finite(
            wire, self.together(self.product(pieces[: len(self.matrices)], pieces[len(self.matrices) :]), raw)
        )

    async def total(self, vector: Vector, memory: Memory, add: Sum) -> tuple[Vector, Memory]:
        memory, raw = await self.meet(vector, memory, add)
        return self.together(self.product(memory[1], memory[2]), raw), memory


async def _nobody_else(vector: Vector) -> None:
    pass


def factor_type(form: Form) -> torch.dtype:
    """What factors are reckoned and sent in."""
    return torch.float64 if any(like.dtype == torch.float64 for like in form.like.parts) else torch.float32


def orthonormal(matrix: Tensor) -> Tensor:
    """Columns of length 1 at right angles that span the same, by Gram-Schmidt.

    A column that the others span, or that is 0, becomes any at right angles: a factor of zeros would stay so for ever.
    Reckoned in float64, so that ranks with another number of threads come to the same float32.
    """
    columns = matrix.double().T.contiguous()
    chance = torch.Generator().manual_seed(0)
    for index, column in enumerate(columns):
        length, before = column.norm(), columns[:index]
        column -= before.T @ (before @ column)
        if column.norm() <= 1e-7 * length or length == 0:
            column.copy_(torch.randn(column.shape, generator=chance, dtype=torch.float64))
            column -= before.T @ (before @ column)
        column -= before.T @ (before @ column)
        column /= column.norm()
    return columns.T.to(matrix.dtype).contiguous()


@dataclass(frozen=True, kw_only=True, slots=True)
class PowerSgd:
    """Two factors of this many columns for each matrix, from one step of power iteration (Vogels et al. 2019)."""

    rank: int = 2
    saving: float = 2.0  # a matrix that would not become this many times smaller travels as it is, as vectors do
    dense: int = 0  # vectors that travel as they are before it begins
    alternating: bool = False  # one factor at a time changes: where they are added up, half as much travels

    def codec(self) -> Codec:
        if self.rank < 1:
            raise PlanError(f"powersgd(rank={self.rank}): 1 or more")
        if self.saving < 0:
            raise PlanError(f"powersgd(saving={self.saving:g}): 0 or more times smaller")
        if self.dense < 0:
            raise PlanError(f"powersgd(dense={self.dense}): 0 vectors or more")
        traits = CodecTraits(summable=True, feedback="needed", shapes=True, steps=1.1)
        found = fusing("powersgd", self.coder, self.nbytes, traits, self.added)
        return warmed_up(found, steps=self.dense) if self.dense else found

    def nbytes(self, form: Form, share: float = 1.0) -> float:
        matrices, raws = divided(form, self.rank, self.saving)
        factors = sum((one.rows + one.columns) * one.rank for one in matrices)
        return share * factors * factor_type(form).itemsize + Raws(form, raws).nbytes

    def added(self, form: Form, workers: int) -> float:
        return 4 + self.nbytes(form, 0.5 if self.alternating else 1.0)

    def coder(self, form: Form, seed: Seed, carries: bool) -> Coder:
        work = LowRank(form, seed, self, carries)
        return Coder(work.start, work.encode, work.decode, work.total)
