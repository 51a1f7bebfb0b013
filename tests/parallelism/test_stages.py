"""Stages together are the model: the same numbers, the same gradients, the very same parameters."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from covey.errors import PlanError
from covey.parallelism import Chain, Stages, chain_of
from tests.parallelism import models

Inputs = tuple[Tensor, ...]


def floats(*shape: int) -> Inputs:
    return (torch.randn(*shape, generator=torch.Generator().manual_seed(1)),)


def words() -> Inputs:
    return (torch.randint(11, (4, 5), generator=torch.Generator().manual_seed(1)),)


CASES: dict[str, tuple[Callable[[], nn.Module], Inputs]] = {
    "mlp": (models.mlp, floats(8, 6)),
    "cnn": (models.cnn, floats(8, 1, 8, 8)),
    "transformer": (models.Transformer, words()),
    "skip": (models.Skip, floats(8, 6)),
    "export": (models.Asks, floats(8, 6)),
}


@cache
def looked_at(name: str) -> tuple[nn.Module, Inputs, Chain]:
    torch.manual_seed(0)
    make, given = CASES[name]
    model, inputs = make().double(), tuple(x.double() if x.is_floating_point() else x for x in given)
    before = copy.deepcopy(model).state_dict()
    chain = chain_of(model, inputs)
    assert all(torch.equal(mine, before[key]) for key, mine in model.state_dict().items()), "looking changed it"
    return model, inputs, chain


def total(output: Any) -> Tensor:
    if isinstance(output, dict):
        return sum((total(value) for value in output.values()), torch.zeros((), dtype=torch.float64))
    return (output * torch.arange(1.0, output.shape[-1] + 1, dtype=torch.float64)).square().mean()


def learn(chain: Chain, stages: Stages, inputs: Inputs) -> Tensor:
    """Forward and backward stage by stage, as on different machines: only tensors pass from one to the next."""
    torch.manual_seed(5)
    taken, given, values = [], [], inputs
    for stage in stages:
        taken.append(values)
        given.append(stage(values))
        assert [x.numel() * x.element_size() for x in given[-1]] == [value.bytes for value in stage.gives]
        values = tuple(x.detach().clone().requires_grad_(x.requires_grad) for x in given[-1])
    loss = total(chain.rebuild(given[-1]))
    loss.backward()
    for number in range(len(stages) - 2, -1, -1):
        errors = [x.grad for x in taken[number + 1]]
        pairs = [(x, e) for x, e in zip(given[number], errors, strict=True) if e is not None]
        torch.autograd.backward([x for x, _ in pairs], [e for _, e in pairs])
        for value, error in zip(stages[number].gives, errors, strict=True):
            assert value.differentiable or error is None, f"{value.name} was said to have no gradient"
    return loss


@pytest.mark.parametrize("parts", [1, 2, 3, 4])
@pytest.mark.parametrize("name", CASES)
def test_stages_give_the_losses_and_gradients_of_the_whole_model(name: str, parts: int) -> None:
    model, inputs, chain = looked_at(name)
    model.zero_grad(set_to_none=True)
    alone = copy.deepcopy(model)
    stages = chain.stages([round(len(chain.layers) * k / parts) - 1 for k in range(1, parts)])
    torch.manual_seed(5)
    expected = total(alone(*inputs))
    expected.backward()
    assert torch.allclose(learn(chain, stages, inputs), expected, atol=1e-12)
    for (key, mine), theirs in zip(model.named_parameters(), alone.parameters(), strict=True):
        assert mine.grad is not None and theirs.grad is not None
        assert torch.allclose(mine.grad, theirs.grad, atol=1e-12), key
    for (key, mine), theirs in zip(model.named_buffers(), alone.buffers(), strict=True):
        assert torch.allclose(mine, theirs, atol=1e-12), key


@pytest.mark.parametrize("name", CASES)
def test_stages_hold_the_very_parameters_under_their_names(name: str) -> None:
    model, _, chain = looked_at(name)
    stages = chain.stages([len(chain.layers) // 2 - 1])
    found = {name: p for stage in stages for name, p in stage.module.named_parameters()}
    assert found.keys() == dict(model.named_parameters()).keys()
    assert all(found[key] is parameter for key, parameter in model.named_parameters())
    assert {key for stage in stages for key in stage.module.state_dict()} == model.state_dict().keys()
    assert stages.unused == ()


def test_all_values_alive_cross_a_cut() -> None:
    chain = chain_of(models.Skip(), floats(8, 6))
    names = [layer.name for layer in chain.layers]
    behind = {value.name: value.differentiable for value in chain.layers[names.index("b")].crossing}
    # the input (for the end), the output of the first relu (for a sum, and as a result), and b's own
    assert behind == {"x": False, "relu": True, "b": True}


def test_a_cut_never_parts_a_value_from_what_changes_it_in_place() -> None:
    chain = chain_of(models.mlp(), floats(8, 6))
    assert [layer.name for layer in chain.layers] == ["1", "2.0", "2.1", "3", "4"]  # 0 and its ReLU in place are one


@pytest.mark.parametrize("name", ["skip", "export"])
def test_other_batch_sizes_go_through_the_same_stages(name: str) -> None:
    model, inputs, chain = looked_at(name)
    values: Inputs = tuple(x[:3] for x in inputs)
    expected = copy.deepcopy(model)(*values)
    for stage in chain.stages([0, len(chain.layers) // 2]):
        values = stage(values)
    assert torch.allclose(total(chain.rebuild(values)), total(expected), atol=1e-12)


def test_tied_weights_are_refused_or_listed() -> None:
    chain = chain_of(models.Transformer(tied=True), words())
    middle = len(chain.layers) // 2
    with pytest.raises(PlanError, match="words.weight = head.weight in stages 0, 1.*tied='sum'"):
        chain.stages([middle])
    assert middle in chain.bound() and chain.bound() == frozenset(range(len(chain.layers) - 1))
    stages = chain.stages([middle], tied="sum")
    assert [(tie.names, tie.stages) for tie in stages.ties] == [(("words.weight", "head.weight"), (0, 1))]
    with pytest.raises(PlanError, match="tied='refuse' or tied='sum'"):
        chain.stages([middle], tied="perhaps")


def test_tied_weights_that_are_frozen_may_be_in_several_stages() -> None:
    model = models.Transformer(tied=True)
    model.words.weight.requires_grad_(False)
    chain = chain_of(model, words())
    assert chain.stages([len(chain.layers) // 2]).ties == ()


def test_a_summed_tie_has_the_gradient_of_the_whole_model() -> None:
    torch.manual_seed(0)
    model = models.Transformer(tied=True).double().eval()
    alone = copy.deepcopy(model)
    chain = chain_of(model, words())
    stages = chain.stages([len(chain.layers) // 2], tied="sum")
    total(alone(*words())).backward()
    learn(chain, stages, words())  # in one process both stages add into the one tensor
    assert torch.allclose(model.words.weight.grad, alone.words.weight.grad, atol=1e-12)  # type: ignore[arg-type]


def test_batch_norm_used_twice_cannot_be_in_two_stages() -> None:
    norm = nn.BatchNorm1d(6)
    model = nn.Sequential(nn.Linear(6, 6), norm, nn.Linear(6, 6), norm)
    chain = chain_of(model, floats(8, 6))
    with pytest.raises(PlanError, match="running_mean would be kept by stages 0 and 1"):
        chain.stages([1], tied="sum")


def test_parameters_that_nobody_uses_are_named() -> None:
    model = models.Skip()
    model.extra = nn.Parameter(torch.ones(2))
    chain = chain_of(model, floats(8, 6))
    assert chain.stages([0]).unused == ("extra",)


def test_cuts_that_cannot_be_are_refused() -> None:
    chain = chain_of(models.mlp(), floats(8, 6))
    for after in ([4], [1, 1], [2, 0], [-1]):
        with pytest.raises(PlanError, match="can be cut after layers 0 to 3"):
            chain.stages(after)
