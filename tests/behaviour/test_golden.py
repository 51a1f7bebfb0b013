"""What each strategy does in its first steps, as pictures that a person can check, and what a checkpoint holds of it.

One file per strategy: tests/golden/strategies/NAME.txt.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from covey import catalog
from covey.program import Memory, Node
from covey.spec import parse
from covey.task import Task
from tests.behaviour.timelines import KEY, picture
from tests.conftest import GOLDEN, Golden
from tests.promises.specs import workable
from tests.real.test_resume import ALL, COMPRESSED
from tests.worlds import World, mlp, quadratic, run, sgd, slowed

LAYERED = ("outer_products", "one_weird_trick")
"""Strategies that look at layers: their pictures are of a model that has some."""


@pytest.mark.parametrize("name", catalog.names())
def test_strategy(golden: Golden, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pictures = [picture(spec, first_steps(name, spec)) for spec in catalog.STRATEGIES[name].timelines]
    specs = [spec for spec in (*ALL, *COMPRESSED, "strads") if named(spec) == name]
    kept = [line for spec in specs for line in remembered(spec, monkeypatch)]
    golden(f"strategies/{name}.txt", "\n".join([f"{KEY}\n", *pictures, "remembered by its roles:\n", *kept]) + "\n")


def named(spec: str) -> str:
    return parse(spec).strategy.name


def first_steps(name: str, spec: str) -> World:
    """Weights of 1 kB, which take 1 ms; a batch takes 10 ms, and worker 1 is twice as slow."""
    if name == "strads":
        return run(straight(), spec, 3, steps=2, cluster=slowed(w1=2))
    if name in LAYERED:
        return run(convolution(), spec, 3, steps=2, cluster=slowed(w1=2))
    workers = 3 if workable(name, 3) == 3 else 4
    return run(quadratic(size=125, samples=120), spec, workers, steps=3, cluster=slowed(w1=2))


def convolution() -> Task:
    """A convolution, which gives 1 kB a batch, and two fully connected layers."""
    x = torch.randn(120, 1, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return mlp(
        data=(x, (x.mean((1, 2, 3)) > 0).long()), batch_size=4,
        model=lambda: nn.Sequential(
            nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(32, 24), nn.Tanh(), nn.Linear(24, 3)
        ).double(),
    )  # fmt: skip


def straight() -> Task:
    """A line through points with 10 features."""
    x = torch.randn(48, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return mlp(
        data=(x, x[:, :1] - x[:, 1:2]), loss=nn.functional.mse_loss, model=lambda: nn.Linear(10, 1).double()
    )  # fmt: skip


def remembered(spec: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of what a checkpoint holds: whatever a role forgets to remember, a resumed run begins anew with."""
    names: dict[str, set[str]] = {}
    remember = Node.remember

    def keep(node: Node, name: str, value: Any, **more: Any) -> Memory[Any]:
        names.setdefault(node.address.role, set()).add(name)
        return remember(node, name, value, **more)

    with monkeypatch.context() as patched:
        patched.setattr(Node, "remember", keep)
        run(straight() if spec == "strads" else mlp(sgd(momentum=0.0 if "hogwild" in spec else 0.5)), spec, 4, steps=1)
    return [spec, *(f"    {role}: {', '.join(sorted(kept))}" for role, kept in sorted(names.items()))]


def test_every_file_is_of_a_strategy() -> None:
    assert {Path(file).stem for file in (GOLDEN / "strategies").iterdir()} == set(catalog.names())
