"""What the members of a tensor group keep of a step, and what they take from each other."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from covey.errors import CoveyError, WireError
from covey.nn.local2d import local2d
from covey.parallelism.tensor.group import TensorGroup
from covey.parallelism.tensor.layout import Blocks, SplitLayout, UnitBlock, inside, ranges_of, refined
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


# -- rules ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("used", "shape"),
    [
        (lambda x: x.sum(axis=1), (2, 6)),
        (lambda x: x.mean(1, keepdims=True), (2, 1, 6)),
        (lambda x: torch.mean(x, axis=-1), (2, 5)),
        (lambda x: x.sum(()), ()),
        (lambda x: torch.sum(input=x, dim=1), (2, 6)),
        (lambda x: torch.softmax(x, axis=1), (2, 5, 6)),
        (lambda x: torch.cat([x, x], axis=1), (2, 10, 6)),
        (lambda x: torch.cat(tensors=[x, x], dim=1), (2, 10, 6)),
        (lambda x: torch.max_pool1d(x, 2), (2, 5, 3)),  # along what is divided
    ],
)
def test_shapes_are_those_of_whole_values(used: Callable[[Tensor], Tensor], shape: tuple[int, ...]) -> None:
    x = divided(torch.randn(2, 5, 3), 2, Twins())
    made = used(x)
    assert made.shape == shape
    expected = used(x.whole("test"))
    whole = made.whole("test") if isinstance(made, SplitTensor) else made
    torch.testing.assert_close(whole, expected)


def test_channels_come_after_samples() -> None:
    """In an image without a number of samples rows are divided, not channels, if its second dimension is."""
    x = divided(torch.randn(3, 4, 6), 1, Twins())
    assert torch.equal(nn.functional.max_pool2d(x, 2), nn.functional.max_pool2d(x.whole("test"), 2))


def test_a_value_is_not_written_where_nobody_looks() -> None:
    x = divided(torch.randn(2, 3), 1, Twins())
    with pytest.raises(CoveyError, match="changes a value in place"):
        torch.add(x, 1.0, out=torch.empty(2, 6))


def test_scores_may_be_infinite() -> None:
    """Also where a member looks instead of at a score that another one has."""
    scores = torch.randn(2, 3)
    scores[:, 0] = -torch.inf
    assert nn.functional.cross_entropy(divided(scores, 1, Twins()), torch.tensor([4, 5])).isfinite()


@pytest.mark.parametrize("label", [-1, 6])
def test_labels_and_words_are_in_range(label: int) -> None:
    scores, words = divided(torch.randn(2, 3), 1, Twins()), divided(torch.randn(3, 4), 0, Twins())
    target = torch.tensor([0, label])
    with pytest.raises(IndexError, match="a label is out of range"):
        nn.functional.cross_entropy(scores, target)
    assert nn.functional.cross_entropy(scores, target, ignore_index=label).isfinite()
    with pytest.raises(IndexError, match="a word is out of range"):
        nn.functional.embedding(target, words)


@pytest.mark.parametrize("height", [6, 9])
def test_images_are_as_high_as_filters_are_many(height: int) -> None:
    weight = divided(torch.randn(4, 4, 2, 9), 0, Twins())
    assert local2d(torch.randn(3, 1, 8, 4), weight, None, 3).shape == (3, 2, 8, 4)
    with pytest.raises(RuntimeError, match="unflatten"):
        local2d(torch.randn(3, 1, height, 4), weight, None, 3)


@pytest.mark.parametrize("came", [torch.ones(3), torch.ones(4, dtype=torch.float64)])
def test_what_cannot_be_a_members_is_refused(came: Tensor) -> None:
    class Strange(Twins):
        def everybodys(self, mine: Tensor) -> list[Tensor]:
            return [mine, came]

    group, layout = Strange(), SplitLayout(0, (UnitBlock(4),))
    for given in (group.add, group.highest, lambda mine: group.join(mine, layout)):
        with pytest.raises(WireError, match="a tensor member gave"):
            given(torch.ones(2, 2))


def test_blocks_are_found_inside_a_range_that_ends_where_blocks_do() -> None:
    one, two, three = UnitBlock(2, 3), UnitBlock(4), UnitBlock(5)
    assert inside((one, two, three), 6, 10) == ((one,), (two,))
    assert inside((one, two, three), 0, 10) == ((), (one, two))
    assert inside((one, two, three), 6, 9) is None and inside((one, two, three), 5, 10) is None


def test_blocks_take_the_place_of_others_once() -> None:
    """What is cut apart keeps its units where they come out even."""
    blocks, wish = (UnitBlock(2, 3), UnitBlock(4), UnitBlock(5)), (UnitBlock(1, 2), UnitBlock(2))
    assert refined(blocks, 6, wish) == (UnitBlock(2, 3), *wish, UnitBlock(5))
    assert refined(blocks, 0, wish) == (*wish, UnitBlock(2), UnitBlock(4), UnitBlock(5))
    assert refined(blocks, 3, (UnitBlock(1, 3),)) == (UnitBlock(1, 3), UnitBlock(1, 3), UnitBlock(4), UnitBlock(5))
    assert refined(blocks, 4, wish) == (UnitBlock(4), *wish, UnitBlock(2), UnitBlock(5)), "in the middle of two"
    assert refined(blocks, 11, wish) == (UnitBlock(2, 3), UnitBlock(4), UnitBlock(1), *wish)
