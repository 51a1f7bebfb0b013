"""The task of `covey demo`: handwritten digits, 8x8 pixels. Copy it, and put in a model and data of your own."""

import torch
from torch import nn

import covey

task = covey.Task(
    model=lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)),
    data=covey.data.digits(train=True),
    optimizer=lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
    loss=nn.functional.cross_entropy,
    batch_size=32,
    evaluate=covey.accuracy(covey.data.digits(train=False)),
)
