"""Vectors that travel as what has changed: both ends keep a copy, a shadow, and what travels moves both copies alike.

What a codec leaves out stays in the difference to the shadow, and so comes later: that is error feedback, and codecs
here have no other (Koloskova et al. 2019: CHOCO).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from covey.errors import PlanError
from covey.exchange.codec import Codec, Coder, Memory, expect, seed
from covey.exchange.collectives.compressed import Means, Sums, beside, change_coder
from covey.model.flat import Form
from covey.model.replica import Replica
from covey.program import Node
from covey.vector import Vector


class Wires:
    """Vectors that travel as they are: one's own to others, or others' to oneself."""

    def tell(self, vector: Vector, who: int = 0) -> Vector:
        """What travels of a vector."""
        return vector

    def hear(self, wire: Vector, who: int = 0) -> Vector:
        """The vector, from what came."""
        return wire

    def begin_at(self, vector: Vector, who: int = 0) -> None:
        """Who has this one before anything is told; a restart remembers what they have by then."""

    def moved(self, by: Vector, who: int = 0) -> None:
        """The vector has changed by this much, which both ends know without a word."""


class Shadows(Wires):
    """Copies of a vector that changes, by who has them: one's own as others have it, or others' as one has them.

    All begin at the same `start`. They survive a restart, by their `name` in the role.
    """

    def __init__(self, node: Node, name: str, coder: Coder, start: Vector) -> None:
        self.coder = coder
        self.start = node.remember(f"{name}.start", start.clone()).value
        self.kept: dict[int, list[Any]] = node.remember(f"{name}.copies", {}).value  # the copy, and the coder's memory

    def of(self, who: int = 0) -> Vector:
        return self._kept(who)[0]  # type: ignore[no-any-return]

    def begin(self, vector: Vector, who: int = 0) -> None:
        """Who has this one now, as it is."""
        self.kept[who] = [vector.clone(), self.coder.memory]

    def begin_at(self, vector: Vector, who: int = 0) -> None:
        if who not in self.kept:
            self.begin(vector, who)

    def moved(self, by: Vector, who: int = 0) -> None:
        self.of(who).add_(by)

    def tell(self, vector: Vector, who: int = 0) -> Vector:
        """What travels so that the copy comes near to the vector; one's own comes as near."""
        kept = self._kept(who)
        wire, kept[1] = self.coder.encode(vector - kept[0], kept[1])
        kept[0].add_(self.coder.decode(wire))
        return wire

    def hear(self, wire: Vector, who: int = 0) -> Vector:
        """The copy after what came; it changes with the next one."""
        return self.of(who).add_(self.coder.decode(wire))

    def _kept(self, who: int) -> list[Any]:
        if who not in self.kept:
            self.begin(self.start, who)
        return self.kept[who]


class Gaps:
    """How far others' models are from one's own, where they travel as they are."""

    def __init__(self, model: Vector) -> None:
        self.model = model

    def hear(self, wire: Vector, who: int = 0) -> Vector:
        """The way from one's own model to that of another, from whom this came."""
        return wire - self.model

    def follow(self, wire: Vector, share: float, who: int = 0) -> None:
        """Move one's own model by a share of that way."""
        self.model.lerp_(wire, share)

    def moved(self, force: Vector, who: int = 0) -> None:
        """Both models come towards each other by this much, which both know without a word."""


class ShadowGaps(Gaps):
    """The same where models travel as differences.

    A shadow lags behind its model, and would hold back whoever follows it; so one's own model is seen through the same
    codec at the same times, and what counts is how far the one shadow is from the other. Of that a part is gone, or the
    `whole` of it where what comes of it is encoded once more, and so is a part anyway.
    """

    def __init__(self, node: Node, replica: Replica, codec: Codec, model: Vector, whole: bool = False) -> None:
        super().__init__(model)
        coder = model_coder(node, replica, codec, "gap")
        self.theirs = Shadows(node, "gaps.theirs", coder, self.model)
        self.own = Shadows(node, "gaps.own", coder, self.model)
        self.gain = 1.0 if whole else gain(coder, self.model, len(replica.flat.parts))

    def hear(self, wire: Vector, who: int = 0) -> Vector:
        theirs = self.theirs.hear(wire, who)
        self.own.tell(self.model, who)
        return (theirs - self.own.of(who)).mul_(self.gain)

    def follow(self, wire: Vector, share: float, who: int = 0) -> None:
        self.model.add_(self.hear(wire, who), alpha=share)

    def moved(self, force: Vector, who: int = 0) -> None:
        self.own.of(who).add_(force, alpha=-1)
        self.theirs.of(who).add_(force)


def model_wires(
    node: Node, replica: Replica, codec: Codec, name: str, seeded: str, start: Vector | None = None
) -> Wires:  # fmt: skip
    """How models travel with a codec: as they are, or as what has changed since all had `start`."""
    if codec.traits.plain:
        return Wires()
    start = replica.model if start is None else start
    return Shadows(node, name, model_coder(node, replica, codec, seeded), start)


def model_gaps(node: Node, replica: Replica, codec: Codec, model: Vector | None = None, whole: bool = False) -> Gaps:
    """How far others' models are from one's own, as they travel with a codec."""
    model = replica.model if model is None else model
    return Gaps(model) if codec.traits.plain else ShadowGaps(node, replica, codec, model, whole)


def model_sums(node: Node, replica: Replica, codec: Codec) -> Sums:
    """Sums of what models change by; what a codec leaves out of one is given back."""
    if codec.traits.plain:
        return Sums(node)
    adds_up = codec.traits.summable and codec.traits.feedback == "none"
    return Means(node, (change_coder if adds_up else model_coder)(node, replica, codec))


def difference_coder(node: Node, form: Form, codec: Codec, *what: object) -> Coder:
    """For differences to a shadow."""
    refuse_carrying(codec)
    coder = codec.made(form, seed(node, *what))
    unbiased = codec.traits.feedback == "none" and not codec.traits.plain
    return damped(coder) if unbiased else coder


def model_coder(node: Node, replica: Replica, codec: Codec, *what: object) -> Coder:
    """For differences of models; float buffers travel as they are."""
    form = replica.form(replica.trained)
    return beside(difference_coder(node, form, codec, *what), len(replica.buffers.parts))


def refuse_carrying(codec: Codec) -> None:
    """A codec that carries on what it drops, or gathers momentum, would send twice what a shadow lacks anyway."""
    if "own" in (codec.traits.feedback, codec.traits.momentum):
        raise PlanError(
            f"{codec.name} carries on what it drops, as gradients need it; where parameters travel as differences to "
            "what was sent before, that is carried on already: use a codec without it, such as topk or int8"
        )


def refuse_lagging(codec: Codec) -> None:
    """Also one that begins with exact numbers, where it must be known from the start how far shadows will lag."""
    refuse_carrying(codec)
    if codec.traits.exact_start:
        raise PlanError(
            f"{codec.name} begins with plain values, which does not combine with strategies that exchange models, "
            "whose workers start from the same weights: omit warmup, or powersgd's dense"
        )


def damped(coder: Coder) -> Coder:
    """A coder that never goes away from the goal: what it decodes to counts as much as brings it nearest.

    A codec that is right only on average may be wrong by more than there was to say, and a shadow would run away from
    its vector. The factor, at most 1, travels along.
    """

    def encode(vector: Vector, memory: Memory) -> tuple[Vector, Memory]:
        wire, memory = coder.encode(vector, memory)
        if _timed(vector):
            return wire.join(Vector([torch.empty(1, device="meta")])), memory
        decoded = coder.decode(wire)
        square = inner(decoded, decoded)
        factor = min(1.0, max(0.0, inner(vector, decoded) / square)) if square else 1.0
        return wire.join(Vector([torch.tensor([factor])])), memory

    def decode(wire: Vector) -> Vector:
        (factor,) = expect(Vector(wire.parts[-1:], wire.origin), (1, torch.float32))
        decoded = coder.decode(Vector(wire.parts[:-1], wire.origin))
        return decoded if _timed(wire) else decoded.mul_(float(factor))

    return Coder(coder.start, encode, decode)


def gain(coder: Coder, like: Vector, parameters: int) -> float:
    """How much of the difference of two shadows to go: all of it where a codec tells all, less where it tells little.

    Shadows lag behind, and who follows old differences in full overshoots: the way must be the shorter the less a codec
    tells (CHOCO's consensus step size, which its authors tune). Of a vector of normal numbers it tells the share s of
    its square; s / (2 - s) of the way is covey's own rule, which held in all that was tried.
    """
    if _timed(like):
        return 1.0
    chance = torch.Generator().manual_seed(0)
    probe = like.map(torch.zeros_like)
    for part in probe.parts[:parameters]:
        part.copy_(torch.randn(part.shape, generator=chance))
    wire, _ = coder.encode(probe, coder.memory)
    left, whole = (probe - coder.decode(wire)).norm() ** 2, probe.norm() ** 2
    told = max(0.0, 1 - left / whole) if whole else 1.0
    return told / (2 - told)


def inner(one: Vector, other: Vector) -> float:
    """The inner product."""
    pairs = zip(one.parts, other.parts, strict=True)
    return sum(float(_flat(a) @ _flat(b).to(a.device)) for a, b in pairs)


def _flat(part: Tensor) -> Tensor:
    return part.double().view(-1)


def _timed(like: Vector) -> bool:
    """Whether nothing is computed, and only sizes count."""
    return any(part.is_meta for part in like.parts)
