"""Activations that are computed again in backward, in models whose layers are divided: gradients stay whole."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from covey.errors import CoveyError
from tests.parallelism.divided_runs import apart, run
from tests.parallelism.test_products import size
from tests.parallelism.test_tensor import task


class Checkpointed(nn.Module):
    """Blocks whose activations are computed again: the first gives a value that another layer could take divided."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.flat, self.reentrant = nn.Flatten(), reentrant
        self.first, self.second, self.last = nn.Linear(64, 12), nn.Linear(12, 8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.flat(x).requires_grad_()
        hidden = checkpoint(lambda given: torch.tanh(self.first(given)), x, use_reentrant=self.reentrant)
        hidden = checkpoint(lambda given: torch.tanh(self.second(given)), hidden, use_reentrant=self.reentrant)
        return self.last(hidden)


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("mesh", ["tensor=2", "shard=2, tensor=2, zero=1"])
def test_activation_checkpoints_keep_their_gradients(reentrant: bool, mesh: str) -> None:
    given = task(lambda: Checkpointed(reentrant))
    found = run(given, f"allreduce with mesh({mesh})", size(mesh))
    assert apart(found, run(given, "allreduce", size(mesh, "shard"))) < 1e-10


def test_a_reentrant_checkpoint_around_a_layer_that_is_to_be_divided_is_refused() -> None:
    with pytest.raises(CoveyError, match="use use_reentrant=False"):
        run(task(lambda: Checkpointed(True)), "allreduce with mesh(tensor=2, split=first:column)", 2)
