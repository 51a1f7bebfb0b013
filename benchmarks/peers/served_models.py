"""The models that covey and its peers serve; without covey they are plain modules."""

from __future__ import annotations

import torch
from torch import nn


def mlp() -> nn.Module:
    """That of examples/digits.py."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def cnn() -> nn.Module:
    """Two convolutions over the same 8x8 pixels."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 8)), nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, 10),
    )  # fmt: skip


MODELS = {"mlp": mlp, "cnn": cnn}


def seeded(name: str) -> nn.Module:
    """The same weights in every process."""
    torch.manual_seed(0)
    return MODELS[name]().eval()
