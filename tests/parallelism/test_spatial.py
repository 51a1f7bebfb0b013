"""Images divided by rows, with filters of their own at every place: only borders travel."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import covey
from covey.errors import CoveyError
from tests.parallelism.test_sharded import apart, run
from tests.parallelism.test_tensor import task


class Local(nn.Module):
    """Two locally connected layers, a convolution, and a linear layer at the end."""

    def __init__(self, convolution: bool = True, height: int = 8) -> None:
        super().__init__()
        self.first = covey.nn.Local2d(1, 2, kernel=3, height=height, width=8)
        self.second = covey.nn.Local2d(2, 3, kernel=5, height=height, width=8, bias=False)
        self.third = nn.Conv2d(3, 2, 3, padding=1) if convolution else nn.Identity()
        self.last = nn.Linear(height * 8 * (2 if convolution else 3), 5)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.second(torch.relu(self.first(x))))
        return self.last(torch.relu(self.third(hidden)).flatten(1))


def test_a_locally_connected_layer_with_equal_filters_is_a_convolution() -> None:
    layer, like, x = covey.nn.Local2d(2, 3, 3, 6, 4), nn.Conv2d(2, 3, 3, padding=1), torch.randn(5, 2, 6, 4)
    with torch.no_grad():
        layer.weight.copy_(like.weight.flatten(1).expand(6, 4, 3, 18))
        assert layer.bias is not None and like.bias is not None
        layer.bias.copy_(like.bias.expand(6, 4, 3))
    torch.testing.assert_close(layer(x), like(x))
    with pytest.raises(CoveyError, match="use an odd number"):
        covey.nn.Local2d(2, 3, 4, 6, 4)


@pytest.mark.parametrize("members", [2, 3, 4])
def test_rows_on_several_workers_learn_what_one_learns(members: int) -> None:
    given = task(Local)
    split = "*first:spatial *second:spatial *last:row"
    for mesh in (f"tensor={members}, split=\"{split}\"", f"tensor={members}"):
        found = run(given, f"allreduce with mesh({mesh})", members)
        assert apart(found, run(given, "allreduce", 1)) < 1e-10


def test_of_a_whole_image_a_member_takes_as_many_rows_as_its_filters_reach() -> None:
    def model() -> nn.Module:
        return nn.Sequential(covey.nn.Local2d(1, 2, kernel=5, height=8, width=8), nn.Flatten(), nn.Linear(128, 5))

    given = task(model)
    found = run(given, 'allreduce with mesh(tensor=2, split="0:spatial")', 2)
    assert apart(found, run(given, "allreduce", 1)) < 1e-10


def test_images_with_fewer_rows_for_each_than_filters_reach_are_brought_together() -> None:
    data = torch.randn(70, 1, 4, 8, dtype=torch.float64), torch.randint(0, 5, (70,))
    given = task(lambda: Local(height=4), data=data)
    found = run(given, 'allreduce with mesh(tensor=4, split="*first:spatial *second:spatial *last:row")', 4, steps=3)
    assert apart(found, run(given, "allreduce", 1, steps=3)) < 1e-10


@pytest.mark.parametrize("height", [8, 16])
def test_only_borders_travel_and_no_gradient(height: int) -> None:
    """Of the second layer two rows each way, forward and backward; a sum of the last layer's outputs, and its bias."""
    data = torch.randn(70, 1, height, 8, dtype=torch.float64), torch.randint(0, 5, (70,))
    given = task(lambda: Local(False, height), data=data)
    split = "first:spatial second:spatial last:row"
    found = run(given, f'allreduce with mesh(tensor=2, split="{split}")', 2, steps=3)
    rows, samples = 2 * 8 * 2, 6
    assert found.traffic.bytes == 3 * 8 * (2 * 2 * rows * samples + 2 * samples * 5 + 5)


def test_cots_hpc_is_this_by_name() -> None:
    given = task(Local)
    found = run(given, "cots_hpc", 4)
    assert apart(found, run(given, "allreduce", 1)) < 1e-10
    assert found.strategy.startswith("cots_hpc") and "tensor=4" in found.strategy


def test_real_processes_compute_the_same() -> None:
    given = task(Local)
    assert apart(run(given, "cots_hpc", 2, engine="local"), run(given, "cots_hpc", 2)) < 1e-12
