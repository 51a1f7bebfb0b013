"""The digits, with what a search may choose as arguments of a function.

Try it: covey tune examples/tune.py --space 'rate=log(1e-3, 1), width=16|64' --policy asha --trials 16 --epochs 8
"""

from dataclasses import replace

import torch
from torch import nn

import covey

train, test = covey.data.digits(train=True), covey.data.digits(train=False)  # once for all trials


def task(rate: float = 0.1, momentum: float = 0.9, width: int = 64) -> covey.Task:
    return covey.Task(
        model=lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10)),
        data=train,
        optimizer=lambda params: torch.optim.SGD(params, lr=rate, momentum=momentum),
        loss=nn.functional.cross_entropy,
        batch_size=32,
        evaluate=covey.accuracy(test),
    )


def few(rate: float = 0.1, momentum: float = 0.9, width: int = 64) -> covey.Task:
    """Somebody else's task, who has a tenth of the data: covey tune examples/tune.py examples/tune.py:few …"""
    return replace(task(rate, momentum, width), data=torch.utils.data.Subset(train, range(len(train) // 10)))
