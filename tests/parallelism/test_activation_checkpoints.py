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
    """A layer whose activations are computed again: it gives a value that the next could take divided, or takes one."""

    def __init__(self, reentrant: bool, layer: str) -> None:
        super().__init__()
        self.flat, self.reentrant, self.layer = nn.Flatten(), reentrant, layer
        self.first, self.second, self.last = nn.Linear(64, 12), nn.Linear(12, 8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.flat(x).requires_grad_()
        return self.last(self.bent("second", self.bent("first", x)))

    def bent(self, name: str, x: Tensor) -> Tensor:
        layer = self.get_submodule(name)
        if name != self.layer:
            return torch.tanh(layer(x))
        made: Tensor = checkpoint(lambda given: torch.tanh(layer(given)), x, use_reentrant=self.reentrant)
        return made


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("layer", ["first", "second"])
@pytest.mark.parametrize("mesh", ["tensor=2", "shard=2, tensor=2, zero=1"])
def test_activation_checkpoints_keep_their_gradients(reentrant: bool, layer: str, mesh: str) -> None:
    given = task(lambda: Checkpointed(reentrant, layer))
    found = run(given, f"allreduce with mesh({mesh})", size(mesh))
    assert apart(found, run(given, "allreduce", size(mesh, "shard"))) < 1e-10


def test_a_reentrant_checkpoint_around_a_layer_that_is_to_be_divided_is_refused() -> None:
    with pytest.raises(CoveyError, match="use use_reentrant=False"):
        run(task(lambda: Checkpointed(True, "first")), "allreduce with mesh(tensor=2, split=first:column)", 2)
