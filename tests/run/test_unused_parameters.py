"""What becomes of parameters of a task that have no gradient, as docs/tasks.md says."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import covey


class Partly(nn.Module):
    """One layer is trained, one is frozen, and one is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.frozen, self.unused = nn.Linear(4, 2), nn.Linear(4, 2), nn.Linear(4, 2)
        self.frozen.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.used(x) + self.frozen(x)


@pytest.mark.parametrize("strategy", ["bsp", "allreduce", "local_sgd"])
def test_a_frozen_layer_stands_still_and_an_unused_one_decays(strategy: str) -> None:
    task = covey.Task(
        model=Partly, data=(torch.randn(64, 4), torch.randint(2, (64,))), loss=nn.functional.cross_entropy,
        optimizer=lambda pairs: torch.optim.SGD(pairs, lr=0.1, weight_decay=0.5), batch_size=8,
    )  # fmt: skip
    before, after = (covey.fit(task, strategy, 2, engine="simulated", steps=steps).weights for steps in (1, 4))
    assert torch.equal(before["frozen.weight"], after["frozen.weight"])
    assert not torch.equal(before["used.weight"], after["used.weight"])
    assert torch.allclose(after["unused.weight"], before["unused.weight"] * 0.95**3, rtol=1e-5)
