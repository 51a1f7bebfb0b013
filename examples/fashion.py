"""Fashion-MNIST with a small CNN (0.8 million parameters).

Try it: covey run examples/fashion.py --strategy 'local_sgd(period=8)' --workers 2 --until accuracy:0.86
"""

import torch
from torch import nn

import covey


def cnn() -> nn.Module:
    """Two convolutions, two fully connected layers."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64 * 7 * 7, 256), nn.ReLU(), nn.Linear(256, 10),
    )  # fmt: skip


task = covey.Task(
    model=cnn,
    data=covey.data.fashion_mnist(train=True),
    optimizer=lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9),
    loss=nn.functional.cross_entropy,
    batch_size=64,
    evaluate=covey.accuracy(covey.data.fashion_mnist(train=False)),
)
