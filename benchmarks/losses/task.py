"""The model as covey's task, and a large one."""

import torch
from torch import nn

import covey
from benchmarks.losses import noted

task = covey.Task(
    model=noted.model, data=noted.samples(), loss=nn.functional.cross_entropy, batch_size=noted.BATCH,
    optimizer=noted.optimizer, warm=False,
)  # fmt: skip

wide = covey.Task(
    model=lambda: nn.Linear(noted.WIDTH, noted.WIDTH, bias=False), loss=nn.functional.cross_entropy, batch_size=1,
    data=(torch.randn(640, noted.WIDTH), torch.randint(0, 10, (640,))),
    optimizer=lambda parameters: noted.NotedAdam(parameters, lr=1e-4), warm=False,
)  # fmt: skip
