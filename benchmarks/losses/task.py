"""The model as covey's task."""

from torch import nn

import covey
from benchmarks.losses import noted

task = covey.Task(
    model=noted.model, data=noted.samples(), loss=nn.functional.cross_entropy, batch_size=noted.BATCH,
    optimizer=noted.optimizer, warm=False,
)  # fmt: skip
