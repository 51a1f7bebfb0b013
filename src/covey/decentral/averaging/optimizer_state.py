"""What becomes of an optimizer's own state when models are averaged: kept, reset, or averaged with them."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

from covey.model.replica import Replica
from covey.vector import Vector

Momentum = Literal["keep", "reset", "average"]


class OptimizerMoments:
    """The float tensors of an optimizer's state: `flat` holds copies of them, which `put_back` writes into it."""

    def __init__(self, optimizer: Optimizer, averaged: bool = True) -> None:
        groups: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
        for tensor in _floats(optimizer) if averaged else []:
            groups.setdefault((tensor.device, tensor.dtype), []).append(tensor)
        self._groups = list(groups.values())
        self.flat = Vector(torch.cat([tensor.reshape(-1) for tensor in group]) for group in self._groups)

    def put_back(self) -> None:
        for group, flat in zip(self._groups, self.flat.parts, strict=True):
            sizes = [tensor.numel() for tensor in group]
            for tensor, part in zip(group, flat.split(sizes), strict=True):
                tensor.copy_(part.view(tensor.shape))


def stop_sent(replica: Replica, sent: Vector) -> None:
    """Zero the momentum of the numbers that this worker has just sent: it would only repeat them (Sattler 2019)."""
    for slot in replica.layout.slots:
        state = replica.optimizer.state.get(replica.layout.parameters[slot.name], {})
        for name in ("momentum_buffer", "exp_avg"):
            moving = state.get(name)
            if isinstance(moving, Tensor):
                moving[slot.view(sent) != 0] = 0


def _floats(optimizer: Optimizer) -> list[Tensor]:
    """In the order of the parameters, which is the same on every worker."""
    states = [optimizer.state[p] for group in optimizer.param_groups for p in group["params"] if p in optimizer.state]
    values = [value for state in states for value in state.values()]
    return [value for value in values if isinstance(value, Tensor) and value.is_floating_point()]
