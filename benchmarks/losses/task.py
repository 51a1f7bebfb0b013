"""The model as covey's task, and a large one."""

import time

import torch
from torch import nn

import covey
from benchmarks.losses import noted

PACE = 0.02  # seconds of a batch, where steps are noted: a run in virtual time does not wait

task = covey.Task(
    model=noted.model, data=noted.samples(), loss=nn.functional.cross_entropy, batch_size=noted.BATCH,
    optimizer=noted.optimizer, warm=False,
)  # fmt: skip

wide = covey.Task(
    model=lambda: nn.Linear(noted.WIDTH, noted.WIDTH, bias=False), loss=nn.functional.cross_entropy, batch_size=1,
    data=(torch.randn(640, noted.WIDTH), torch.randint(0, 10, (640,))),
    optimizer=lambda parameters: noted.NotedAdam(parameters, lr=1e-4), warm=False,
)  # fmt: skip


def slowly(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    time.sleep(PACE * (noted.folder() is not None))
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


chance = torch.Generator().manual_seed(1)
paced = covey.Task(
    model=lambda: nn.Linear(16, 4), step=slowly, batch_size=8,
    data=(torch.randn(960, 16, generator=chance), torch.randint(0, 4, (960,), generator=chance)),
    optimizer=lambda parameters: noted.NotedSGD(parameters, lr=0.01), warm=False,
)  # fmt: skip
