"""An unbalanced CNN: wide convolutions at the front take nearly all the time, many small layers come behind.

Where should it be cut? covey cut examples/unbalanced.py --stages 3 --bandwidth 1gbit --picture unbalanced.svg
"""

import torch
from torch import nn

import covey


class Residual(nn.Module):
    """Two small convolutions and a way around them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1)
        self.second = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + self.second(torch.relu(self.first(x))))


class Unbalanced(nn.Module):
    """Cut after equally many layers, the first stage would have nearly all the work."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Sequential(
            nn.Conv2d(1, 48, 5, padding=2),
            nn.ReLU(),
            nn.Conv2d(48, 48, 5, padding=2),
            nn.ReLU(),
            nn.Conv2d(48, 48, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.deep = nn.Sequential(nn.Conv2d(48, 8, 1), *(Residual(8) for _ in range(3)))
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(8 * 4 * 4, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.deep(self.wide(x.view(-1, 1, 8, 8))))


task = covey.Task(
    model=Unbalanced,
    data=covey.data.digits(train=True),
    optimizer=lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9),
    loss=nn.functional.cross_entropy,
    batch_size=64,
    evaluate=covey.accuracy(covey.data.digits(train=False)),
)
