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


class NotedSGD(torch.optim.SGD):
    """SGD that writes when it has stepped, into the folder STEPS of the environment."""

    def step(self, closure: Any = None) -> Any:
        done = super().step(closure)
        if folder := os.environ.get("STEPS"):
            with Path(folder, str(os.getpid())).open("ab") as file:
                file.write(struct.pack("d", time.monotonic()))
        return done


def model() -> nn.Module:
    """0.7 million parameters."""
    return nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))


def optimizer(parameters: Any) -> torch.optim.Optimizer:
    return NotedSGD(parameters, lr=0.01)


def samples() -> tuple[torch.Tensor, torch.Tensor]:
    chance = torch.Generator().manual_seed(0)
    return torch.randn(8192, 784, generator=chance), torch.randint(0, 10, (8192,), generator=chance)
