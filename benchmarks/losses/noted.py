"""The model that all programs train, and an optimizer that notes the time of each step in a file of its process."""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

BATCH = 64

WIDTH = 5000  # 25 million parameters in a matrix: with two states of Adam 300 MB


def folder() -> str | None:
    """Where steps are noted, if they are: STEPS of the environment."""
    return os.environ.get("STEPS")


def note() -> None:
    """Write that a step is done."""
    if place := folder():
        with Path(place, str(os.getpid())).open("ab") as file:
            file.write(struct.pack("d", time.monotonic()))


class NotedSGD(torch.optim.SGD):
    """SGD that notes its steps."""

    def step(self, closure: Any = None) -> Any:
        done = super().step(closure)
        note()
        return done


class NotedAdam(torch.optim.Adam):
    """Adam that notes its steps."""

    def step(self, closure: Any = None) -> Any:
        done = super().step(closure)
        note()
        return done


def model() -> nn.Module:
    """0.7 million parameters."""
    return nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))


def optimizer(parameters: Any) -> torch.optim.Optimizer:
    return NotedSGD(parameters, lr=0.01)


def samples() -> tuple[torch.Tensor, torch.Tensor]:
    chance = torch.Generator().manual_seed(0)
    return torch.randn(8192, 784, generator=chance), torch.randint(0, 10, (8192,), generator=chance)
