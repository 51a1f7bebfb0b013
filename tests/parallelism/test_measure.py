"""What is measured: bytes exactly, times in their proportions, and nothing of the model is changed."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from covey.parallelism import CutTerms, Schedule, best_cut, chain_of, measure
from covey.parallelism.plan.cut import smallest_cut
from tests.parallelism import models


def test_bytes_are_exact() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.BatchNorm1d(16), nn.Linear(16, 4))
    model[0].bias.requires_grad_(False)
    inputs = (torch.randn(32, 8),)
    profile = measure(chain_of(model, inputs), inputs, repeat=1)
    first, relu, norm, last = profile.layers
    assert [layer.name for layer in profile.layers] == ["0", "1", "2", "3"]
    assert [layer.weights for layer in profile.layers] == [8 * 16 * 4, 0, 2 * 16 * 4, (16 * 4 + 4) * 4]
    assert first.fixed == 16 * 4 and norm.fixed == 2 * 16 * 4 + 8  # statistics, and a count
    assert (profile.inputs, first.sends, first.returns, last.sends) == (
        32 * 8 * 4,
        32 * 16 * 4,
        32 * 16 * 4,
        32 * 4 * 4,
    )
    # the first layer's output is not needed again; relu's is, and the norm's (with its means) for the last layer
    assert (first.kept, relu.kept, norm.kept, last.kept) == (0, 32 * 16 * 4, 32 * 16 * 4 + 2 * 16 * 4, 0)


def test_what_is_kept_is_what_torch_keeps() -> None:
    """For the whole model: the sum over its layers is what autograd saves, each tensor once."""
    torch.manual_seed(0)
    model, inputs = models.cnn(), (torch.randn(4, 1, 8, 8),)
    profile = measure(chain_of(model, inputs), inputs, repeat=1)
    weights = {p.data_ptr() for p in (*model.parameters(), *model.buffers(), *inputs)}
    kept: dict[int, torch.Tensor] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(*inputs)
    real = sum(tensor.untyped_storage().nbytes() for where, tensor in kept.items() if where not in weights)
    assert sum(layer.kept for layer in profile.layers) == real


def test_the_large_layer_takes_longest_and_nothing_is_changed() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.Linear(64, 1500), nn.Linear(1500, 2), nn.Dropout())
    inputs = (torch.randn(64, 64),)
    before, draw = copy.deepcopy(model.state_dict()), torch.random.get_rng_state()
    chain = chain_of(model, inputs)
    profile = measure(chain, inputs, loss=lambda out: out.square().mean(), repeat=3)
    assert max(profile.layers, key=lambda layer: layer.forward + layer.backward).name == "2"
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters()) and torch.equal(draw, torch.random.get_rng_state())


@pytest.mark.parametrize("tied", ["refuse", "sum"])
def test_tied_weights_bind_layers_unless_they_are_summed(tied: str) -> None:
    inputs = (torch.randint(11, (2, 5)),)
    profile = measure(chain_of(models.Transformer(tied=True, depth=1), inputs), inputs, repeat=1, tied=tied)
    assert any(layer.cuttable for layer in profile.layers[:-1]) == (tied == "sum")
    whole = sum(p.numel() for p in models.Transformer(tied=True, depth=1).parameters())
    copies = 11 * 8 if tied == "sum" else 0
    assert profile.weights(0, len(profile) - 1) == 4 * (whole + copies)


def test_a_stage_with_nothing_but_borrowed_weights_trains_nothing() -> None:
    """The last layer has the words' weights: no cut is just before it."""
    inputs = (torch.randint(11, (2, 5)),)
    profile = measure(chain_of(models.Transformer(tied=True, depth=1), inputs), inputs, repeat=0, tied="sum")
    last = len(profile) - 1
    assert profile.weights(last, last) == profile.layers[last].borrowed > 0 and not profile.trains(last, last)
    terms = CutTerms(stages=2, schedule=Schedule(microbatches=2), trains=True)
    for cut in (best_cut(profile, terms), smallest_cut(profile, terms)):
        assert all(profile.trains(*part) for part in cut.parts(len(profile)))
