"""Floats as whole numbers whose sum over all clients fits the ring that masks live in."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from covey.errors import PlanError, WireError
from covey.vector import Vector

RING = {32: torch.int32, 64: torch.int64}
EXACT = 1 << 52  # levels that a double can tell apart


@dataclass(frozen=True, slots=True)
class FixedPoint:
    """Numbers from -clip to clip in steps of clip / levels; what lies outside is moved to the nearest end.

    >>> FixedPoint(clip=1.0, levels=100).quantise(Vector([torch.tensor([0.25, -3.0])])).tolist()
    [25, -100]
    """

    clip: float = 8.0
    levels: int = 1 << 22
    bits: int = 32

    def check(self, clients: int) -> None:
        """Refuse settings with which a sum over so many clients could wrap around."""
        if self.bits not in RING:
            raise PlanError(f"secagg(bits={self.bits}): 32 or 64")
        if not (math.isfinite(self.clip) and self.clip > 0):
            raise PlanError(f"secagg(clip={self.clip}): a number above 0 is needed")
        if not 1 <= self.levels <= EXACT:
            raise PlanError(f"secagg(levels={self.levels}): from 1 to 2^52")
        if clients * self.levels > largest_sum(self.bits):
            most = largest_sum(self.bits) // self.levels
            wider = ", or bits=64" if self.bits == 32 else ""
            raise PlanError(
                f"secagg(levels={self.levels}, bits={self.bits}) with {clients} clients: their sum could wrap around. "
                f"At most {most} clients fit; or take at most {largest_sum(self.bits) // clients} levels{wider}"
            )

    def quantise(self, values: Vector) -> Tensor:
        """The nearest levels, one flat tensor."""
        if not values.finite():
            raise WireError("the numbers to add up are NaN or infinite: training has diverged")
        flat = torch.cat([part.detach().reshape(-1).double() for part in values.parts])
        return flat.clamp_(-self.clip, self.clip).mul_(self.levels / self.clip).round_().to(RING[self.bits])

    def restore(self, total: Tensor, like: Vector) -> Vector:
        """The sum as floats, in the form of `like`."""
        floats = total.double().mul_(self.clip / self.levels)
        parts = floats.split([part.numel() for part in like.parts])
        return Vector(new.to(part.dtype).reshape(part.shape) for new, part in zip(parts, like.parts, strict=True))


def largest_sum(bits: int) -> int:
    """The largest sum of whole numbers, and the negative of the smallest, that a ring tells apart."""
    return (1 << (bits - 1)) - 1
