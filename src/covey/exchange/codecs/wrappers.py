"""What may be put around a codec: momentum before it, a clipped norm, a start in full numbers.

A wrapper leaves the decoding to what is inside. Where the codec inside drops something that has to be carried on, that
is done close to it: momentum and clipping are for gradients, not for what waits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import torch

from covey.errors import PlanError
from covey.exchange.codec import Codec, Coder, Memory, Seed, Sum, check, expect, refused, zeros
from covey.exchange.codec import error_feedback as carried
from covey.exchange.codecs.momentum import check_momentum
from covey.model.flat import Form
from covey.vector import Vector

Before = Callable[[Vector, Memory], tuple[Vector, Memory]]
"""What becomes of a vector before it is coded, and the memory of that."""


def wrapped(codec: Codec, around: Callable[[Codec], Codec], make: Callable[[Form, Seed, Coder], Coder]) -> Codec:
    """The codec with coders inside others; `around` is what makes it so of any codec."""
    inside = (lambda: around(codec.carrying())) if codec.traits.feedback == "needed" else None
    traits = replace(codec.traits, weights=False)  # it remembers something
    coder = lambda form, seed: make(form, seed, codec.make(form, seed))  # noqa: E731
    return replace(codec, make=coder, traits=traits, inside=inside, fused=None)


def first(inner: Coder, start: Callable[[], Memory], before: Before) -> Coder:
    """Something is done to each vector first."""

    def encode(vector: Vector, memory: Memory) -> tuple[Vector, Memory]:
        check(vector)
        changed, mine = before(vector, memory[0])
        wire, inside = inner.encode(changed, memory[1])
        return wire, (mine, inside)

    async def total(vector: Vector, memory: Memory, add: Sum) -> tuple[Vector, Memory]:
        check(vector)
        assert inner.total is not None
        changed, mine = before(vector, memory[0])
        summed, inside = await inner.total(changed, memory[1], add)
        return summed, (mine, inside)

    return Coder(lambda: (start(), inner.memory), encode, inner.decode, total if inner.total else None)


def with_momentum(codec: Codec, momentum: float) -> Codec:
    """Momentum gathers before anything is left out (Lin et al. 2018); the optimizer must then have none."""

    def before(vector: Vector, moving: Memory) -> tuple[Vector, Memory]:
        moved = Vector(u * momentum + g for u, g in zip(moving.parts, vector.parts, strict=True))
        return moved, moved

    def make(form: Form, seed: Seed, inner: Coder) -> Coder:
        return first(inner, lambda: zeros(form), before)

    if codec.traits.momentum == "own":
        raise PlanError(f"momentum_correction + {codec.name}: the momentum would count twice; omit momentum_correction")
    made = wrapped(codec, partial(with_momentum, momentum=momentum), make)
    return replace(made, traits=replace(made.traits, momentum="own")) if momentum else made


def clipped(codec: Codec, norm: float) -> Codec:
    """A vector that is longer than this is made as long."""

    def before(vector: Vector, memory: Memory) -> tuple[Vector, Memory]:
        length = vector.norm()
        return (vector if length <= norm else vector * (norm / length)), None

    return wrapped(codec, partial(clipped, norm=norm), lambda form, seed, inner: first(inner, lambda: None, before))


def warmed_up(codec: Codec, steps: int = 0, epochs: float = 0.0) -> Codec:
    """The first vectors travel as they are; a byte says which do."""

    def make(form: Form, seed: Seed, inner: Coder) -> Coder:
        if epochs and not form.epoch:
            raise PlanError(f"warmup(epochs={epochs:g}): the length of an epoch is unknown here; use steps=…")
        until = steps or (max(1, round(epochs * form.epoch)) if epochs else 0)

        def encode(vector: Vector, memory: Memory) -> tuple[Vector, Memory]:
            count, inside = memory
            if count < until:
                check(vector)
                wire = Vector(part.to(like.dtype) for part, like in zip(vector.parts, form.like.parts, strict=True))
            else:
                wire, inside = inner.encode(vector, inside)
            return Vector([_flag(count >= until), *wire.parts]), (count + 1, inside)

        def decode(wire: Vector) -> Vector:
            head, rest = wire.parts[:1], Vector(wire.parts[1:], wire.origin)
            (flag,) = expect(Vector(head, wire.origin), (1, torch.uint8))
            if int(flag) > 1:
                raise refused(wire, f"a flag of {int(flag)}")
            if flag:
                return inner.decode(rest)
            expect(rest, *((like.numel(), like.dtype) for like in form.like.parts))
            return rest.map(lambda part: part.clone())

        async def total(vector: Vector, memory: Memory, add: Sum) -> tuple[Vector, Memory]:
            assert inner.total is not None
            count, inside = memory
            if count < until:
                summed = vector.clone()
                await add(summed)
            else:
                summed, inside = await inner.total(vector, inside, add)
            return summed, (count + 1, inside)

        return Coder(lambda: (0, inner.memory), encode, decode, total if inner.total else None)

    around = partial(warmed_up, steps=steps, epochs=epochs)
    made = wrapped(codec, around, make)
    fused = None if codec.traits.feedback == "own" else around(carried(codec))  # what travels as it is drops nothing
    traits = replace(made.traits, exact_start=True)
    return replace(made, nbytes=lambda form: 1 + codec.nbytes(form), traits=traits, fused=fused)


def _flag(value: bool) -> torch.Tensor:
    return torch.tensor([value], dtype=torch.uint8)


@dataclass(frozen=True, kw_only=True, slots=True)
class ErrorFeedback:
    """What a codec drops is carried on; of codecs that are biased this is done anyway where gradients travel."""

    def wrap(self, codec: Codec) -> Codec:
        return carried(codec)


@dataclass(frozen=True, kw_only=True, slots=True)
class MomentumCorrection:
    """Momentum gathers at the worker, before anything is left out; the optimizer must have none (Lin et al. 2018)."""

    momentum: float = 0.9

    def wrap(self, codec: Codec) -> Codec:
        check_momentum("momentum_correction", self.momentum)
        return with_momentum(codec, self.momentum)


@dataclass(frozen=True, kw_only=True, slots=True)
class Clip:
    """A vector that is longer than this is made as long, before it is coded."""

    norm: float = 1.0

    def wrap(self, codec: Codec) -> Codec:
        if not self.norm > 0:
            raise PlanError(f"clip(norm={self.norm:g}): must be more than 0")
        return clipped(codec, self.norm)


@dataclass(frozen=True, kw_only=True, slots=True)
class Warmup:
    """The first vectors travel as they are: this many, or those of this many epochs."""

    example: ClassVar = "warmup(steps=100)"  # it needs one of its settings

    steps: int | None = None
    epochs: float | None = None

    def wrap(self, codec: Codec) -> Codec:
        if (self.steps is None) == (self.epochs is None):
            raise PlanError("warmup needs one of steps=… and epochs=…")
        if self.steps is not None and self.steps < 1:
            raise PlanError(f"warmup(steps={self.steps}): 1 or more")
        if self.epochs is not None and not self.epochs > 0:
            raise PlanError(f"warmup(epochs={self.epochs:g}): must be more than 0")
        return warmed_up(codec, self.steps or 0, self.epochs or 0.0)
