"""The models that ship with covey to be cut."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from covey.model import build
from covey.parallelism import chain_of, inputs_of
from covey.task import load_task


@pytest.fixture(scope="module")
def characters() -> Any:
    return load_task("examples/characters.py")


def test_the_character_model_can_be_cut_between_all_its_modules(characters: Any) -> None:
    model, batch = build.model(characters, 0), tuple(column[:4] for column in characters.data)
    inputs = inputs_of(characters, model, batch)
    chain = chain_of(model, inputs)
    assert len(chain.layers) == len(model)
    values = inputs
    for stage in chain.stages([0, 2, 5]):
        values = stage(values)
    assert torch.allclose(chain.rebuild(values), model(*inputs), atol=1e-5)


def test_it_sees_what_came_before_and_not_what_comes(characters: Any) -> None:
    model = build.model(characters, 0)
    x, following = (column[:2].clone() for column in characters.data)
    assert torch.equal(x[:, 1:], following[:, :-1]), "each character is followed by the next"
    before = model(x)
    x[:, 40] = (x[:, 40] + 1) % 10
    changed = (model(x) - before).abs().amax(dim=(0, 2)) > 1e-6
    assert not changed[:40].any() and changed[40:].all()


def test_it_learns_and_is_scored_on_verse_it_has_not_seen(characters: Any) -> None:
    model = build.model(characters, 0)
    letters = model[-1].out_features
    begin = characters.evaluate(model)
    assert begin["bits"] == pytest.approx(begin["loss"] / math.log(2))
    assert abs(begin["bits"] - math.log2(letters)) < 0.5, "a fresh model knows nothing but the alphabet"
    optimizer = characters.optimizer(list(model.named_parameters()))
    for first in range(0, 64, 8):
        optimizer.zero_grad()
        characters.forward(model, tuple(column[first : first + 8] for column in characters.data)).backward()
        optimizer.step()
    assert characters.evaluate(model)["bits"] < begin["bits"] - 0.8
