"""Fashion-MNIST with a small CNN (0.8 million parameters, 3.3 MB); `benchmarks/time_to_accuracy.py` races with it.

Try it: covey run examples/fashion.py --strategy 'local_sgd(period=8)' --workers 2 --until accuracy:0.86
"""

import torch
from torch import nn

import covey


def cnn() -> nn.Module:
    """Two convolutions of 16 and 32 channels with pooling, then 512 hidden units."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 7 * 7, 512), nn.ReLU(), nn.Linear(512, 10),
    )  # fmt: skip


task = covey.Task(
    model=cnn,
    data=covey.data.fashion_mnist(train=True),
    optimizer=lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9),
    loss=nn.functional.cross_entropy,
    batch_size=64,
    evaluate=covey.accuracy(covey.data.fashion_mnist(train=False)),
)
