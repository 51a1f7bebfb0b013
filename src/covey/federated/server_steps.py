"""What does the service do with the aggregate of a round? A step, as an optimizer's: functions and a state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from covey.vector import Vector

ServerOptimizer = Literal["momentum", "adam", "yogi", "adagrad"]
ServerState = tuple[Vector, ...]


class ServerStep(NamedTuple):
    """`init` gives the state for a model; `move` changes the model in place by an aggregate, and gives the next."""

    init: Callable[[Vector], ServerState]
    move: Callable[[Vector, Vector, ServerState], ServerState]


def plain(rate: float = 1.0) -> ServerStep:
    """Add the aggregate: with a rate of 1 the new model is the mean of the clients' models."""

    def move(model: Vector, change: Vector, state: ServerState) -> ServerState:
        model.add_(change, alpha=rate)
        return state

    return ServerStep(lambda model: (), move)


def momentum(rate: float = 1.0, beta: float = 0.9) -> ServerStep:
    """Hsu et al. 2019 (FedAvgM): v = beta v + change, model += rate v."""

    def move(model: Vector, change: Vector, state: ServerState) -> ServerState:
        (velocity,) = state
        velocity.mul_(beta).add_(change)
        model.add_(velocity, alpha=rate)
        return (velocity,)

    return ServerStep(lambda model: (model.map(torch.zeros_like),), move)


def adaptive(
    kind: Literal["adam", "yogi", "adagrad"], rate: float = 0.01, beta: float = 0.9, beta2: float = 0.99,
    tau: float = 1e-3,
) -> ServerStep:  # fmt: skip
    """Reddi et al. 2021, algorithm 2, without bias correction: model += rate m / (sqrt(v) + tau)."""

    def second(v: Tensor, square: Tensor) -> Tensor:
        match kind:
            case "adagrad":
                return v + square
            case "yogi":
                return v - (1 - beta2) * square * torch.sign(v - square)
            case "adam":
                return beta2 * v + (1 - beta2) * square

    def move(model: Vector, change: Vector, state: ServerState) -> ServerState:
        m, v = state
        m.mul_(beta).add_(change, alpha=1 - beta)
        v = Vector(second(old, new.square()) for old, new in zip(v.parts, change.parts, strict=True))
        for mine, mean, scale in zip(model.parts, m.parts, v.parts, strict=True):
            mine.add_(mean / (scale.sqrt() + tau), alpha=rate)
        return m, v

    def init(model: Vector) -> ServerState:
        # v begins with tau squared, as in the paper: the first steps are neither tiny nor huge
        return model.map(torch.zeros_like), model.map(lambda part: torch.full_like(part, tau * tau))

    return ServerStep(init, move)
