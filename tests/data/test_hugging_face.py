"""Data sets of Hugging Face, map-style and streaming, made here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import covey
from tests.late_imports import LateImport

datasets = LateImport("datasets")


def trained(data: Any, **how: Any) -> covey.Result:
    task = covey.Task(
        model=lambda: nn.Linear(4, 2),
        data=data,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
        step=lambda model, batch: nn.functional.cross_entropy(model(batch["x"]), batch["y"]),
        batch_size=10,
    )
    return covey.fit(task, "allreduce", engine="simulated", **how)


def rows(count: int) -> Any:
    x = torch.randn(count, 4, generator=torch.Generator().manual_seed(0))
    return datasets.Dataset.from_dict({"x": x.tolist(), "y": (x.sum(1) > 0).long().tolist()}).with_format("torch")


def test_a_map_style_data_set(tmp_path: Path) -> None:
    made = rows(120)
    made.save_to_disk(tmp_path / "set")
    data = datasets.load_from_disk(tmp_path / "set")
    assert trained(data, workers=3, epochs=2).samples == 240


@pytest.mark.parametrize("shards", [1, 4])
def test_a_stream(shards: int) -> None:
    """One with fewer shards than workers cannot divide itself."""
    stream = rows(120).to_iterable_dataset(num_shards=shards).shuffle(seed=1, buffer_size=20)
    assert trained(stream, workers=2, steps=9).samples == 180


def test_a_map_style_data_set_is_packed(tmp_path: Path) -> None:
    covey.data.pack(rows(30), tmp_path / "set", "mds")
    data = covey.data.remote(tmp_path / "set")
    assert len(data) == 30 and data[7]["x"].shape == (4,)
