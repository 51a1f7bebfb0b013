"""A small problem in double precision for federated runs, whose answer can be computed by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from covey.federated.local_training import LocalResult, LocalTraining
from covey.run.federated import federating
from covey.task import Task

SAMPLES = 60


def regression(samples: int = SAMPLES, momentum: float = 0.0, **more: object) -> Task:
    """A linear regression with three classes of noise, in double precision."""
    chance = torch.Generator().manual_seed(5)
    x = torch.randn(samples, 4, dtype=torch.float64, generator=chance)
    y = x @ torch.tensor([[1.0], [-2.0], [0.5], [3.0]], dtype=torch.float64) + 0.1
    site = torch.arange(samples) % 3
    data = TensorDataset(x, y, site)
    return Task(
        model=lambda: nn.Linear(4, 1).double(), data=data,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1, momentum=momentum),
        step=lambda model, batch: nn.functional.mse_loss(model(batch[0]), batch[1]),
        batch_size=8, **more,  # type: ignore[arg-type]
    )  # fmt: skip


@pytest.fixture
def task() -> Task:
    return regression()


def trained_by(monkeypatch: pytest.MonkeyPatch, train: Callable[..., LocalResult]) -> None:
    """Let clients report what this function says; each then trains by itself, when it begins."""
    monkeypatch.setattr(LocalTraining, "train", train)
    monkeypatch.setattr(federating, "GroupedWork", lambda kind, do: None)
