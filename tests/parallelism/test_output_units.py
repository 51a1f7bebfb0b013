"""Where the fully connected end of a model begins, and what is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from covey.errors import PlanError
from covey.parallelism import chain_of
from covey.parallelism.units.output_units import SplitModel, fully_connected
from covey.parallelism.units.unit_replica import part_of


def ends(model: nn.Module, *shape: int) -> SplitModel:
    return fully_connected("one_weird_trick", chain_of(model, (torch.randn(4, *shape),)))


def blocks(model: nn.Module, *shape: int) -> list[str]:
    return [block.name for block in ends(model, *shape).blocks]


def test_behind_the_last_thing_that_is_no_layer_of_units() -> None:
    front = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(inplace=True), nn.Flatten())
    tail = nn.Sequential(nn.Linear(32, 8), nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(8, 4))
    found = ends(nn.Sequential(front, tail), 1, 6, 6)
    assert [block.name for block in found.blocks] == ["1.0", "1.3"]
    assert [len(block.after) for block in found.blocks] == [2, 0]
    assert found.front is not None and found.head is None and found.returns
    assert found.names == {"1.0.weight", "1.0.bias", "1.3.weight", "1.3.bias"}


def test_all_of_a_model() -> None:
    found = ends(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)), 6)
    assert found.front is None and not found.returns, "what the data is made of learns nothing"
    assert [block.units for block in found.blocks] == [8, 3]
    assert not ends(nn.Sequential(nn.Flatten(), nn.Linear(6, 3)), 2, 3).returns
    assert ends(nn.Linear(6, 3), 6).names == {"weight", "bias"}


@pytest.mark.parametrize("between", [nn.BatchNorm1d(8), nn.LayerNorm(8), nn.PReLU(), nn.Softmax(1), nn.Flatten()])
def test_what_is_not_done_number_by_number_ends_it(between: nn.Module) -> None:
    assert blocks(nn.Sequential(nn.Linear(6, 8), between, nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 3)), 6) == ["2", "4"]


class Model(nn.Module):
    """Some layers, put together by a function."""

    def __init__(self, forward: Callable[[Model, Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.second, self.third = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)
        self.way = forward

    def forward(self, x: Tensor) -> Tensor:
        return self.way(self, x)


def test_functions_and_methods_of_a_forward() -> None:
    found = ends(Model(lambda m, x: F.softmax(m.third(F.gelu(m.second(m.first(x).relu()), approximate="tanh")), 1)), 6)
    assert [block.name for block in found.blocks] == ["first", "second", "third"]
    assert found.head is not None, "a softmax is of all units: it is for whoever has the sample"
    x = torch.randn(4, 6)
    assert torch.equal(found.blocks[1].after[0](x), F.gelu(x, approximate="tanh"))
    assert torch.equal(found.blocks[0].after[0](x), x.relu())


def test_a_skip_ends_it() -> None:
    assert blocks(Model(lambda m, x: m.third(m.second(y := m.first(x)) + y)), 6) == ["third"]


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten()),
        nn.Sequential(nn.Flatten(), nn.Linear(36, 4), nn.BatchNorm1d(4)),
        nn.Sequential(nn.Flatten(), nn.utils.parametrizations.weight_norm(nn.Linear(36, 4))),
    ],
    ids=["convolutions", "statistics at the end", "a weight that is computed"],
)
def test_what_has_no_such_end_is_told_what_would_work(model: nn.Module) -> None:
    with pytest.raises(
        PlanError, match=r"divides the fully connected layers.*needs nn.Linear.*Use allreduce, or poseid"
    ):
        ends(model, 1, 6, 6)


def test_tied_weights_and_layers_used_twice_are_not_divided() -> None:
    twice = Model(lambda m, x: m.first(m.second(m.first(x))))
    with pytest.raises(PlanError, match="weights of their own"):
        ends(twice, 6)
    tied = Model(lambda m, x: m.third(m.second(m.first(x))))
    tied.third.weight = tied.first.weight
    with pytest.raises(PlanError, match="weights of their own"):
        ends(tied, 6)


@pytest.mark.parametrize("workers", [1, 2, 3, 7])
def test_slices_make_the_whole(workers: int) -> None:
    x, made = torch.randn(5, 6), []
    torch.manual_seed(0)
    whole = nn.Linear(6, 5)
    for rank in range(workers):
        layer = nn.Linear(6, 5)
        layer.load_state_dict(whole.state_dict())
        (block,) = ends(nn.Sequential(layer, nn.Tanh()), 6).blocks
        block.keep(workers, rank)
        made.append(block(x))
    torch.testing.assert_close(torch.cat(made, dim=1), whole(x))


def test_rows_of_a_batch_are_those_of_its_samples() -> None:
    """What has no row for each sample, such as weights of classes, belongs to all of them."""
    x, weights, rate = torch.arange(8), torch.tensor([1.0, 2.0, 3.0]), torch.tensor(0.5)
    part = part_of({"x": x, "more": (x.view(8, 1), weights, rate, "words")}, (2, 5))
    again, kept, scale, words = part["more"]
    assert part["x"].tolist() == again.view(-1).tolist() == [2, 3, 4]
    assert kept is weights and scale is rate and words == "words"
    assert part_of(given := (x, weights), (0, 8)) is given
