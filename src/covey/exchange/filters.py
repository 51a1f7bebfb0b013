"""Which numbers of a push are worth sending? Filters of Li et al. 2014, and keys that say which numbers were sent."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from random import Random
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from covey.errors import WireError
from covey.message import raw
from covey.vector import Vector

Kind = Literal["none", "significance", "kkt", "random_skip", "key_caching"]
Masks = Vector


class Filter(NamedTuple):
    """`pick(mean, pending, params, chance)` marks the numbers to send, None for all; the rest waits, or is dropped."""

    name: Kind
    pick: Callable[[Vector, Vector, Vector, Random], Masks | None]
    waits: bool = True
    caches: bool = False


everything = Filter("none", lambda mean, pending, params, chance: None)


def significance(threshold: float) -> Filter:
    """Send what has gathered to more than `threshold`; the rest gathers on (the significantly-modified filter)."""
    return Filter("significance", lambda mean, pending, params, chance: pending.map(lambda p: p.abs() > threshold))


def kkt(l1: float, slack: float) -> Filter:
    """Leave out weights at zero whose gradient cannot move them: with an l1 penalty |g| <= l1 keeps them there.

    Nothing waits: the gradient is computed anew at the next weights.
    """

    def pick(mean: Vector, pending: Vector, params: Vector, chance: Random) -> Masks:
        pairs = zip(mean.parts, params.parts, strict=True)
        return Vector((w != 0) | (g.abs() > l1 - slack) for g, w in pairs)

    return Filter("kkt", pick, waits=False)


def random_skip(probability: float) -> Filter:
    """Skip each number with this probability; it waits for the next push, so nothing is lost."""

    def pick(mean: Vector, pending: Vector, params: Vector, chance: Random) -> Masks:
        draw = torch.Generator().manual_seed(chance.getrandbits(63))
        return pending.map(lambda p: torch.rand(p.numel(), generator=draw).to(p.device) >= probability)

    return Filter("random_skip", pick)


key_caching = Filter("key_caching", lambda mean, pending, params, chance: pending.map(lambda p: p != 0), caches=True)
"""Zeros stay at home, and a list of keys that the receiver has already travels as its signature only."""


def gather(vector: Vector, masks: Masks) -> tuple[Vector, Vector]:
    """The keys and the values that the masks mark."""
    keys = masks.map(lambda mask: mask.nonzero().view(-1).int())
    return keys, Vector(part[mask] for part, mask in zip(vector.parts, masks.parts, strict=True))


def scatter(keys: Vector, values: Vector, like: Vector) -> Vector:
    """The values at their keys, and zeros elsewhere."""
    dense = like.map(torch.zeros_like)
    pieces = list(zip(dense.parts, keys.parts, values.parts, strict=False))
    same = len(dense.parts) == len(keys.parts) == len(values.parts)
    if not same or not all(where.shape == what.shape and _inside(where, part) for part, where, what in pieces):
        raise WireError(f"keys {keys} and values {values}, which do not fit {like}")
    for part, where, what in pieces:
        part[where.long()] = what
    return dense


def _inside(keys: Tensor, part: Tensor) -> bool:
    return not keys.numel() or 0 <= int(keys.min()) <= int(keys.max()) < part.numel()


class KeyCache:
    """The last list of keys that went over a link. Links lose nothing, so both ends always hold the same."""

    def __init__(self) -> None:
        self.signature = 0
        self.keys = Vector(())

    def shorten(self, keys: Vector) -> tuple[int, Vector]:
        """(Sender) What travels for these keys: their signature, and themselves only when they are new."""
        signature = sign(keys)
        known, self.signature = signature == self.signature, signature
        return signature, Vector(()) if known else keys

    def restore(self, signature: int, keys: Vector) -> Vector:
        """(Receiver) The keys that were meant."""
        if keys.parts:
            self.signature, self.keys = signature, keys
        assert signature == self.signature, "a signature of keys that never came"
        return self.keys


def sign(keys: Vector) -> int:
    """A number that stands for a list of keys; never 0."""
    digest = hashlib.blake2b(digest_size=7)
    for part in keys.parts:
        digest.update(raw(_counted(part)))
    return int.from_bytes(digest.digest()) or 1


def _counted(part: Tensor) -> Tensor:
    """With its length in front, so that two lists of parts never look alike."""
    return torch.cat([part.new_tensor([part.numel()]), part])
