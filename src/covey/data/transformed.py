"""Samples as a task transforms them: each has a chance of its own, so it does not matter who transforms it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate

from covey.data.seeded_draws import SeededDraws, mixed
from covey.faults import in_task
from covey.task.data import Data


def transformed(
    data: Data, transform: Callable[[Any], Any], collate: Callable[[list[Any]], Any] | None, numbers: Tensor,
    seed: int, epoch: int,
) -> Any:  # fmt: skip
    """A batch of these samples, as they are in this pass over the data."""
    found = []
    # what the model draws from goes on afterwards as if nothing had been drawn
    with SeededDraws(seed), in_task("transform(sample)"):
        for number in numbers.tolist():
            own = mixed(seed, epoch, number)
            torch.default_generator.manual_seed(own)
            np.random.seed(own % (1 << 32))
            random.seed(own)
            sample = tuple(column[number] for column in data) if isinstance(data, tuple) else data[number]
            found.append(transform(sample))
    with in_task("collate(samples)" if collate else "transform(sample): what it gave for these samples is no batch"):
        return (collate or default_collate)(found)
