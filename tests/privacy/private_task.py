"""A small private task for real processes."""

from __future__ import annotations

import torch
from torch import nn

import covey

task = covey.Task(
    model=lambda: nn.Linear(3, 2), data=(torch.zeros(40, 3), torch.zeros(40, dtype=torch.long)),
    optimizer=lambda params: torch.optim.SGD(params, lr=0.1), loss=nn.functional.cross_entropy, batch_size=8,
    private=covey.PrivateSgd(noise=1.0),
)  # fmt: skip
