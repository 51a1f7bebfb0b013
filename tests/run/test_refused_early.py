"""What cannot work is refused before anything starts."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch

from covey import catalog
from covey.errors import PlanError
from covey.run import launch
from covey.run.request import options, request
from tests.worlds import mlp


class Layerwise(torch.optim.SGD):
    """Looks at whole parameters, or says so."""

    elementwise = False


CHOOSERS = ["a_bsp", "gradient_coding", "specsync", "sandblaster"]


@pytest.mark.parametrize("name", CHOOSERS)
def test_a_loop_of_ones_own_cannot_choose_samples(name: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(PlanError, match=f"{name} says itself which samples.*covey run a Task.*such as bsp"):
        launch(script, [], name, 2)
    assert not (tmp_path / "ran").exists(), "no process has begun"


def test_who_chooses_samples_says_so() -> None:
    """Exactly those that ask a replica for the gradient of a batch of their choice."""

    def chooses(name: str) -> bool:
        return "gradient_of(" in inspect.getsource(inspect.getmodule(catalog.STRATEGIES[name].settings) or inspect)

    assert [name for name in catalog.names() if chooses(name)] == [
        name for name in catalog.names() if catalog.resolve(name, 4).chooses
    ]


def test_an_optimizer_that_cannot_work_is_refused_before_a_process_starts() -> None:
    """A request is everything checked, and nothing started."""
    whole: Any = lambda pairs: Layerwise(pairs, lr=0.01)  # noqa: E731
    with pytest.raises(PlanError, match="use an element-wise optimizer"):
        request(mlp(whole), "bigdl", 2, options({"steps": 2}))
    request(mlp(whole), "bigdl", 1, options({"steps": 2}))
    with pytest.raises(PlanError, match="momentum=drop to train without"):
        request("examples/digits.py", "hogwild", 2, options({"steps": 2}))
