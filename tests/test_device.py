"""`device=`: where models and batches go. On a machine without a GPU; `tests.on_gpu` tries the same with one."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import pytest
import torch
from torch import nn

import covey
from covey.errors import PlanError
from covey.model import build
from covey.task.device import device_of, placed
from tests.worlds import mlp, sgd

Pair = namedtuple("Pair", "x y")
CPU = torch.device("cpu")


class Noted:
    """A batch of the user's own, which can be moved."""

    device = ""

    def to(self, device: torch.device) -> Noted:
        self.device = str(device)
        return self


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if there were two GPUs."""
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)


@pytest.mark.usefixtures("cards")
def test_roles_share_the_cards_of_a_machine_by_their_ranks() -> None:
    assert [str(device_of("cuda", rank)) for rank in range(4)] == ["cuda:0", "cuda:1", "cuda:0", "cuda:1"]
    assert [str(device_of("auto", rank)) for rank in range(2)] == ["cuda:0", "cuda:1"]
    assert {str(device_of("cuda:1", rank)) for rank in range(2)} == {"cuda:1"}
    assert device_of("cpu", 1) == CPU
    with pytest.raises(PlanError, match=r"cuda:0 to 1.*device='cuda'"):
        device_of("cuda:2", 0)


def test_auto_is_the_processor_where_there_is_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: None)
    assert device_of("auto", 3) == CPU
    for name in ("cuda", "cuda:0"):
        with pytest.raises(PlanError, match="use device='auto'"):
            device_of(name, 0)
        with pytest.raises(PlanError, match="use device='auto'"):
            covey.fit(mlp(device=name), "bsp", 2, epochs=1)


def test_all_tensors_of_a_batch_are_moved() -> None:
    """To where they can be seen to have moved, without a GPU."""
    there, x = torch.device("meta"), torch.ones(2)
    moved = placed({"a": x, "b": [x, (x, 3)], "c": Pair(x, "word"), "d": Noted()}, there)
    assert moved["a"].is_meta and moved["b"][0].is_meta and moved["b"][1][0].is_meta and moved["b"][1][1] == 3
    assert isinstance(moved["c"], Pair) and moved["c"].x.is_meta and moved["c"].y == "word"
    assert moved["d"].device == "meta"


@pytest.mark.parametrize("engine", ["simulated", "local"])
def test_it_changes_nothing_where_all_is_there_already(engine: str) -> None:
    plain, auto = (
        covey.fit(mlp(sgd(), samples=32, device=device), "bsp", 2, engine=engine, epochs=1, runs=False)
        for device in (None, "cpu")
    )
    assert all(torch.equal(plain.weights[name], auto.weights[name]) for name in plain.weights)
    assert auto.settings["device"] == "cpu"


def test_batches_come_to_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step is given what the feed has placed."""
    seen: list[str] = []

    def spied(batch: Any, device: torch.device) -> Any:
        seen.append(str(device))
        return batch

    monkeypatch.setattr("covey.data.feed.placed", spied)
    covey.fit(mlp(samples=32, device="cpu"), "bsp", 2, engine="simulated", epochs=1)
    assert seen == ["cpu"] * 4


def test_lazy_modules_take_their_shapes_there() -> None:
    given = mlp(model=lambda: nn.Sequential(nn.LazyLinear(3)).double(), device="cpu")
    assert build.model(given, 0)[0].weight.shape == (3, 6)  # type: ignore[index]


@pytest.mark.parametrize("name", ["meta", "gpu", "cuda:x", 0, torch.device("cpu"), ""])
def test_what_names_no_device_is_refused(name: Any) -> None:
    with pytest.raises(PlanError, match="device must be 'auto', 'cpu', 'cuda' or one such as 'cuda:1'"):
        mlp(device=name)
