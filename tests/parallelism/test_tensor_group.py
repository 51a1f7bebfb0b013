"""What the members of a tensor group keep of a step, and what they take from each other."""

from __future__ import annotations

import weakref

import pytest
import torch
from torch import Tensor, nn

from covey.parallelism.tensor.group import TensorGroup
from covey.parallelism.tensor.layout import Blocks, SplitLayout, UnitBlock, ranges_of
from covey.parallelism.tensor.rules import RULES
from covey.parallelism.tensor.split_tensor import SplitTensor


class Twins(TensorGroup):
    """Two members that have the same numbers, as the first of them sees it."""

    def __init__(self) -> None:
        super().__init__(2, RULES)
        self.sums: list[tuple[int, ...]] = []

    def everybodys(self, mine: Tensor) -> list[Tensor]:
        self.sums.append(tuple(mine.shape))
        return [mine, mine]

    def ranges(self, blocks: Blocks) -> list[tuple[int, int]]:
        return ranges_of(blocks, 2, 0)


def divided(local: Tensor, dim: int, group: TensorGroup) -> SplitTensor:
    return SplitTensor(local, SplitLayout(dim, (UnitBlock(2 * local.shape[dim]),)), group)


def test_a_step_computes_with_the_numbers_that_a_parameter_has_now() -> None:
    """Also where they were written past autograd, as owners' numbers are, or where another memory has them."""
    group, weight = Twins(), nn.Parameter(torch.ones(2))
    assert group.copied(weight) is group.copied(weight)
    group.forget()
    weight.data = torch.full((2,), 7.0)
    assert group.copied(weight).tolist() == [7, 7]


def test_uses_of_a_value_are_one_sum_until_its_backward() -> None:
    group, weight = Twins(), nn.Parameter(torch.ones(2))
    for _ in range(2):  # batches of one step
        (group.copied(weight) * group.copied(weight)).sum().backward()
    assert group.sums == [(2,), (2,)]
    assert weight.grad is not None and weight.grad.tolist() == [8, 8]  # two members, two batches


@pytest.mark.parametrize("through", [True, False])
def test_activations_go_with_their_step(through: bool) -> None:
    group, weight = Twins(), nn.Parameter(torch.ones(4, 3))
    hidden = weight * 2
    kept = weakref.ref(hidden)
    made = divided(nn.Parameter(torch.ones(5, 3)), 0, group)
    loss = nn.functional.linear(hidden, made).local.sum()
    if through:
        loss.backward()
    else:
        group.forget()
    del hidden, made, loss
    assert kept() is None
