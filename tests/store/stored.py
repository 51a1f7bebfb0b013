"""Versions for tests, without training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from covey.observe.facts import RunFacts, RunOrigin
from covey.store.model_store import ModelStore
from covey.store.versions import ModelOrigin, ModelVersion


def origin(*keys: str, strategy: str = "bsp", **more: Any) -> ModelOrigin:
    """The lineage of a model that runs with these keys have trained."""
    settings = {"batch_size": 32}
    run = RunFacts(task="train.py", strategy=strategy, taxonomy={}, engine="local", workers=2, settings=settings)
    return ModelOrigin(run=run, runs=[RunOrigin(key=key, record=f"record-{key}") for key in keys], **more)


def weights(fill: float = 1.0) -> dict[str, Tensor]:
    return {"layer.weight": torch.full((3, 2), fill), "layer.bias": torch.zeros(3), "other.bias": torch.zeros(3)}


def register(folder: Path, name: str = "digits", fill: float = 1.0, **more: Any) -> ModelVersion:
    metrics = more.pop("metrics", {"accuracy": 0.9})
    return ModelStore(folder).register(name, weights(fill), origin("a", **more), metrics)


def files(folder: Path) -> set[str]:
    """The files of tensors in a store."""
    return {path.stem for path in (folder / "tensors").rglob("*.safetensors")}
