"""Handwritten digits, 8x8 pixels: the smallest real task.

Try it: covey run examples/digits.py --strategy easgd --workers 2 --until accuracy:0.95
"""

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

if __name__ == "__main__":
    result = covey.fit(task, strategy="easgd", workers=2, until="accuracy>=0.95")
    print(result.strategy, result.reached)
