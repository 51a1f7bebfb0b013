"""The same models as tasks of covey: `covey serve FILE.safetensors --task benchmarks/peers/served_tasks.py:mlp`."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import torch
from torch import nn

import covey

sys.path.insert(0, str(Path(__file__).parent))
from served_models import MODELS

mlp, cnn = (
    covey.Task(
        model=MODELS[name], data=(torch.rand(64, 8, 8), torch.zeros(64, dtype=torch.long)),
        optimizer=partial(torch.optim.SGD, lr=0.1), loss=nn.functional.cross_entropy, batch_size=32,
    )
    for name in ("mlp", "cnn")
)  # fmt: skip
