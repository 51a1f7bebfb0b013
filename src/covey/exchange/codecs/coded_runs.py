"""Codecs that code runs of numbers, each in one pass with what was dropped before: a layer, or a whole part."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from covey.errors import WireError
from covey.exchange.codec import Codec, Coder, Memory, Seed, Total, check, expect, fusing, zeros
from covey.exchange.codec_traits import UNBIASED, CodecTraits
from covey.model.flat import Form, ParameterRange
from covey.vector import Vector

Scope = Literal["layer", "global"]
"""What shares a scale, or a choice: the numbers of one parameter, or all of one type."""


@dataclass(frozen=True, slots=True)
class NumberRun:
    """Numbers of a part that are coded together."""

    part: int
    start: int
    stop: int
    block: int = 0  # this many in a row share a scale; 0: all of them
    raw: bool = False  # they travel as they are

    @property
    def count(self) -> int:
        return self.stop - self.start

    @property
    def scales(self) -> int:
        return -(-self.count // (self.block or max(self.count, 1)))

    def of(self, vector: Vector) -> Tensor:
        return vector.parts[self.part][self.start : self.stop]


Dividing = Callable[[Form], list[NumberRun]]


def divided(
    scope: Scope, block: int = 0, raw: Callable[[Form, ParameterRange], bool] = lambda form, layer: False
) -> Dividing:
    """Into layers, of which some may stay `raw`, or into whole parts."""

    def runs(form: Form) -> list[NumberRun]:
        if scope == "global":
            return [
                NumberRun(index, 0, part.numel(), block) for index, part in enumerate(form.like.parts) if part.numel()
            ]
        return [
            NumberRun(index, layer.start, layer.stop, block, raw(form, layer))
            for index, layers in enumerate(form.layers)
            for layer in layers
            if layer.stop > layer.start
        ]

    return runs


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCoding:
    """How a run becomes streams of whole numbers and scales.

    With a residual `x + residual` is coded, and what is dropped of it becomes the residual.
    """

    encode: Callable[[Tensor, Tensor | None, NumberRun, int], Sequence[Tensor]]  # the last number is for chance
    decode: Callable[[Sequence[Tensor], NumberRun, Tensor], object]  # into a flat float32 tensor
    streams: Sequence[
        tuple[torch.dtype, Callable[[NumberRun], int]]
    ]  # of each the type, and how many numbers a run has


def coded(
    name: str, coding: RunCoding, runs: Dividing, traits: CodecTraits = UNBIASED, *,
    total: Callable[[RunCoder], Total] | None = None, summed: Callable[[Form, int], float] | None = None,
) -> Codec:  # fmt: skip
    """A codec of runs; its error feedback is done in the same pass."""

    def nbytes(form: Form) -> float:
        sent = [run for run in runs(form) if not run.raw]
        sizes = sum(size(run) * dtype.itemsize for dtype, size in coding.streams for run in sent)
        return Raws(form, runs(form)).nbytes + sizes

    def make(form: Form, seed: Seed, carries: bool) -> Coder:
        work = RunCoder(coding, form, seed, runs(form), carries)
        return Coder(work.start, work.encode, work.decode, total(work) if total else None)

    return fusing(name, make, nbytes, replace(traits, summable=total is not None), summed)


class Raws:
    """Runs that travel as they are: on the wire one tensor for each part that has any."""

    def __init__(self, form: Form, runs: Iterable[NumberRun]) -> None:
        self.parts: dict[int, list[NumberRun]] = {}
        for run in runs:
            if run.raw:
                self.parts.setdefault(run.part, []).append(run)
        self.sizes = [
            (sum(run.count for run in mine), form.like.parts[part].dtype) for part, mine in self.parts.items()
        ]
        self.nbytes = sum(count * dtype.itemsize for count, dtype in self.sizes)

    def of(self, vector: Vector) -> list[Tensor]:
        """Copies of what is raw."""
        pieces = [[run.of(vector) for run in mine] for mine in self.parts.values()]
        return [torch.cat(mine).to(dtype) for mine, (_, dtype) in zip(pieces, self.sizes, strict=True)]

    def put(self, decoded: Vector, parts: Sequence[Tensor]) -> None:
        """Write what travelled into its places."""
        for mine, numbers in zip(self.parts.values(), parts, strict=True):
            for run, piece in zip(mine, numbers.split([run.count for run in mine]), strict=True):
                run.of(decoded).copy_(piece)


class RunCoder:
    """A coding at work on vectors of one form. It remembers what was dropped, and how often it has coded."""

    def __init__(self, coding: RunCoding, form: Form, seed: Seed, runs: Sequence[NumberRun], carries: bool) -> None:
        self.coding, self.form, self.seed, self.carries = coding, form, seed, carries
        self.runs = [run for run in runs if not run.raw]
        self.raws = Raws(form, runs)

    def start(self) -> Memory:
        return zeros(self.form) if self.carries else None, 0

    def chance(self, count: int, number: int) -> int:
        """For run `number` of the vector that is coded after `count` others."""
        return chance(self.seed, count, number)

    def encode(self, vector: Vector, memory: Memory) -> tuple[Vector, Memory]:
        check(vector)
        residual, count = memory
        pieces = []
        for number, run in enumerate(self.runs):
            kept, dtype = run.of(residual) if residual else None, self.form.like.parts[run.part].dtype
            pieces.append(code(self.coding, run.of(vector), kept, run, self.chance(count, number), dtype))
        streams = [
            joined([piece[index].view(-1) for piece in pieces], dtype, vector)
            for index, (dtype, _) in enumerate(self.coding.streams)
        ]
        return Vector([*streams, *self.raws.of(vector)]), (residual, count + 1)

    def decode(self, wire: Vector) -> Vector:
        likes, many = self.form.like.parts, len(self.coding.streams)
        sizes = [(sum(size(run) for run in self.runs), dtype) for dtype, size in self.coding.streams]
        parts = expect(wire, *sizes, *self.raws.sizes)
        wide = Vector(torch.empty(like.numel(), dtype=torch.float32, device=like.device) for like in likes)
        places = [0] * many
        for run in self.runs:
            ends = [place + size(run) for place, (_, size) in zip(places, self.coding.streams, strict=True)]
            found = [parts[i][places[i] : ends[i]].to(likes[run.part].device) for i in range(many)]
            self.coding.decode(found, run, run.of(wide))
            places = ends
        return finite(wire, self.narrowed(wide, parts[many:]))

    def narrowed(self, wide: Vector, raws: Sequence[Tensor]) -> Vector:
        """As numbers of the form, raw ones among them."""
        decoded = Vector(one.to(like.dtype) for one, like in zip(wide.parts, self.form.like.parts, strict=True))
        self.raws.put(decoded, raws)
        return decoded


def chance(seed: int, count: int, number: int) -> int:
    """A seed for run `number` of the vector that is coded after `count` others."""
    return (seed + (count << 24) + number) % (1 << 63)


def code(
    coding: RunCoding, x: Tensor, residual: Tensor | None, run: NumberRun, chance: int, dtype: torch.dtype
) -> Sequence[Tensor]:
    """One run, which is decoded to numbers of this type, whatever momentum is reckoned in.

    Kernels reckon in float32, so what is dropped of other numbers is found beside them.
    """
    if residual is None or dtype == torch.float32:
        return coding.encode(x, residual, run, chance)
    wanted = residual + x
    pieces = coding.encode(wanted, None, run, chance)
    decoded = torch.empty(run.count, dtype=torch.float32, device=x.device)
    coding.decode([piece.view(-1) for piece in pieces], run, decoded)
    residual.copy_(wanted.sub_(decoded.to(dtype)))
    return pieces


def joined(pieces: Sequence[Tensor], dtype: torch.dtype, vector: Vector) -> Tensor:
    """One after the other; a single one is not copied."""
    if len(pieces) == 1:
        return pieces[0]
    device = vector.parts[0].device if vector.parts else torch.device("cpu")
    return torch.cat(list(pieces)) if pieces else torch.empty(0, dtype=dtype, device=device)


def finite(wire: Vector, decoded: Vector) -> Vector:
    """Refuse what only shows itself when decoded; elsewhere the wire's own floats are looked at when they arrive."""
    if not decoded.finite():
        raise WireError(f"{wire.origin or 'a peer'} sent a gradient with NaN or infinite numbers: it has diverged")
    return decoded


def packed(bits: int) -> Callable[[NumberRun], int]:
    """How many bytes the numbers of a run fill, this many bits each."""
    return lambda run: -(-run.count * bits // 8)
