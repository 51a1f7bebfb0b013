"""Where a model may be cut, and how it is told when it cannot be."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from covey.errors import PlanError
from covey.parallelism import chain_of, cut_here
from tests.parallelism import models

X = torch.randn(8, 6, generator=torch.Generator().manual_seed(2))


def names(model: nn.Module, cuts: tuple[str, ...] = ()) -> list[str]:
    return [layer.name for layer in chain_of(model, (X,), cuts).layers]


def test_marks_are_the_only_cuts() -> None:
    chain = chain_of(models.Marked(), (X,))
    assert len(chain.layers) == 3
    assert [[value.name for value in layer.crossing] for layer in chain.layers[:2]] == [["relu"], ["relu", "relu_1"]]
    assert all("cut_here" not in stage.module.code for stage in chain.stages([0, 1]))  # type: ignore[operator]


def test_marks_survive_torch_export() -> None:
    chain = chain_of(models.AsksMarked(), (X,))
    assert chain.traced.way == "export" and len(chain.layers) == 2
    assert "test_trace" not in chain.notes[0] and "models.py" in chain.notes[0]


def test_marks_inside_the_modules_of_a_sequential_count() -> None:
    assert len(names(nn.Sequential(models.Marked(), nn.Linear(6, 6)))) == 3


def test_a_mark_is_the_identity() -> None:
    assert cut_here(X) is X


def test_names_of_modules_are_cuts() -> None:
    assert len(names(models.Marked(), ("a",))) == 2
    assert len(names(models.mlp(), ("2", "1"))) == 3
    assert len(names(nn.Sequential(models.Skip(), nn.Identity()), ("0.a",))) == 2  # inside a module of a Sequential
    with pytest.raises(PlanError, match="no module 'd' to cut after; there are a, b, c"):
        names(models.Marked(), ("d",))


def test_a_module_that_decides_by_its_data_is_kept_whole() -> None:
    chain = chain_of(models.Around(), (X,))
    assert "decides" in [layer.name for layer in chain.layers]
    assert "decides is kept whole: models.py" in chain.notes[0] and "x.sum() > 0" in chain.notes[0]


def test_a_model_that_decides_by_its_data_is_refused() -> None:
    with pytest.raises(PlanError, match=r"Decides cannot be cut: models.py:\d+ .*module of its own") as refused:
        chain_of(models.Decides(), (X,))
    assert "x.sum() > 0" in str(refused.value)
    assert len(names(nn.Sequential(models.Decides(), nn.Linear(6, 6)))) == 2  # what the message says would work


def test_chance_that_became_fixed_is_noticed() -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(self.a(x) + torch.randn(6))

    with pytest.raises(PlanError, match="does not do what the model does .*the numbers differ"):
        chain_of(Noisy(), (X,))


def test_a_mark_where_no_cut_can_be_is_refused() -> None:
    class InPlace(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(cut_here(self.a(x)).relu_())

    with pytest.raises(PlanError, match="cannot be cut after a, where it is marked"):
        chain_of(InPlace(), (X,))


def test_a_mark_inside_what_is_kept_whole_is_refused() -> None:
    class Hidden(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(6, 6)

        def forward(self, x: Tensor) -> Tensor:
            return self.a(cut_here(x)) if x.sum() > 0 else cut_here(x)

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.hidden = nn.Linear(6, 6), Hidden()

        def forward(self, x: Tensor) -> Tensor:
            return self.hidden(self.first(x))

    with pytest.raises(PlanError, match="1 of 1 marks of cut_here lie in modules that are kept whole"):
        chain_of(Outer(), (X,))
