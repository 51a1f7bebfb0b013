"""Delay compensation: bring a late gradient to where the parameters are now, by its own square (Zheng et al. 2017)."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from covey.program import Node
from covey.vector import Vector


def compensation(node: Node, params: Vector, *, strength: float, adaptive: bool) -> Compensation:
    """For a server with these parameters; what it has learned of the gradients is remembered."""
    return Compensation(strength, adaptive, squares=node.remember("squares", zeros(params)).value if adaptive else None)


def zeros(like: Vector) -> Vector:
    return like.map(torch.zeros_like)


@dataclass(slots=True)
class Compensation:
    """Keeps, for every worker, the parameters it was given: grad + strength * grad^2 * (params - given)."""

    strength: float = 0.04
    adaptive: bool = False
    memory: float = 0.95
    given: dict[int, Vector] = field(default_factory=dict)
    squares: Vector | None = None

    def gave(self, rank: int, params: Vector) -> None:
        self.given[rank] = params.clone()

    def correct(self, rank: int, grad: Vector, params: Vector) -> Vector:
        if rank not in self.given:  # after a restart: nothing was handed out yet, so nothing is late
            return grad
        scale = self._scale(grad)
        moved = params - self.given[rank]
        return Vector(g + s * g * g * d for g, s, d in zip(grad.parts, scale, moved.parts, strict=True))

    def _scale(self, grad: Vector) -> list[torch.Tensor | float]:
        if not self.adaptive:
            return [self.strength] * len(grad.parts)
        if self.squares is None:
            self.squares = zeros(grad)
        for square, part in zip(self.squares.parts, grad.parts, strict=True):
            square.mul_(self.memory).addcmul_(part, part, value=1 - self.memory)
        return [self.strength / torch.sqrt(square + 1e-7) for square in self.squares.parts]
