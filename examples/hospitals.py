"""Three hospitals with records of their own, of docs/tutorials/hospitals.md; digits stand in for the records.

Try it: covey federate simulate examples/hospitals.py --clients 3 --per-round 3 --over 1 --partition 'by(column=site)'
"""

from dataclasses import replace

import numpy as np
import torch
from torch import nn
from torch.utils.data import Subset, TensorDataset

import covey


class Records(TensorDataset):
    """Records of all houses, with the house of each: what a rehearsal has, and nobody later."""

    def __init__(self) -> None:
        super().__init__(*covey.data.digits(train=True).tensors)
        x, y = self.tensors
        # north has most records, and south mostly high digits
        self.site = np.where(y.numpy() > 6, "south", np.where(np.arange(len(x)) % 3 == 0, "east", "north"))

    def of(self, site: str) -> Subset:
        """The records of one house."""
        return Subset(self, np.flatnonzero(self.site == site).tolist())


records = Records()
task = covey.Task(
    model=lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)),
    data=records,
    optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
    loss=nn.functional.cross_entropy,
    batch_size=32,
    evaluate=covey.accuracy(covey.data.digits(train=False)),
)
study = replace(task, data=None)  # the same without data: each house brings its own
north, east, south = records.of("north"), records.of("east"), records.of("south")
