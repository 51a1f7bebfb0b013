"""Gathered rows have a gradient, and none of a gradient, which would be that of all workers' losses."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from covey.errors import PlanError
from covey.exchange.gathered_rows import GatheringWorkers


class Twice(GatheringWorkers):
    """Two workers with the same rows and the same loss."""

    def swap(self, number: int, parts: Sequence[Tensor]) -> list[Tensor]:
        return [parts[self.rank], parts[self.rank]]


@pytest.mark.parametrize("weight", [1.0, 0.5])  # of a batch half as large as the mean of all
def test_the_gradient_is_that_of_the_losses_of_both(weight: float) -> None:
    x = torch.arange(3.0, requires_grad=True)
    Twice(0, 2, lambda: weight).gather(x).square().sum().backward()
    assert x.grad is not None and x.grad.tolist() == [0, 4, 8]


def test_a_gradient_penalty_through_gathered_rows_is_refused() -> None:
    x = torch.arange(3.0, requires_grad=True)
    loss = Twice(0, 2, lambda: 1.0).gather(x).square().sum()
    with pytest.raises(PlanError, match=r"create_graph=True.*own rows, before member\.gather"):
        torch.autograd.grad(loss, x, create_graph=True)
