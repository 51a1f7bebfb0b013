"""Sparse regression: 12 of 200 features count. STRADS finds them, a few weakly correlated ones at a time.

covey run examples/lasso.py --strategy "strads(l1=0.01)" --workers 2 --until "error<=0.02"
"""

import torch
from torch import nn

import covey

FEATURES, COUNTING = 200, 12


def samples(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Standardized features, of which neighbours are correlated, and what follows from a few of them."""
    chance = torch.Generator().manual_seed(seed)
    x = torch.randn(count, FEATURES, generator=chance)
    x[:, 1::2] = 0.6 * x[:, ::2] + 0.8 * x[:, 1::2]
    weights = torch.zeros(FEATURES)
    weights[:: FEATURES // COUNTING] = torch.linspace(-2, 2, len(weights[:: FEATURES // COUNTING]))
    return x, (x @ weights + 0.1 * torch.randn(count, generator=chance)).unsqueeze(1)


def error(model: nn.Module) -> dict[str, float]:
    x, y = samples(500, seed=2)
    with torch.no_grad():
        return {"error": float(nn.functional.mse_loss(model(x), y))}


task = covey.Task(
    model=lambda: nn.Linear(FEATURES, 1),
    data=samples(2000, seed=1),
    optimizer=lambda params: torch.optim.SGD(params, lr=0.01),
    loss=nn.functional.mse_loss,
    batch_size=500,
    evaluate=error,
)
