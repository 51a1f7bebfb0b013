"""Which data was a model trained on? A hash of all its tensors, or of samples of it."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import IterableDataset, TensorDataset

from covey.task import Task

SAMPLED = 64  # samples of data that is no tensors, spread evenly over it


def data_hash(task: Task) -> tuple[str, str]:
    """The SHA-256 of a task's training data, and in words what it is of; empty where that cannot be told."""
    data: Any = task.dataset
    columns = data.tensors if type(data) is TensorDataset else data
    if data is None or isinstance(data, IterableDataset):
        return "", "a stream" if data is not None else "no data"
    if isinstance(columns, tuple):
        return _digest(columns), f"all {len(columns[0])} samples"
    count = len(data)
    places = sorted({count * number // SAMPLED for number in range(SAMPLED)})
    try:
        first, second = (_digest([data[place] for place in places]) for _ in range(2))
    except TypeError as error:
        return "", str(error)
    if first != second:
        return "", "samples that change each time"
    return first, f"{len(places)} of {count} samples"


def _digest(value: Any) -> str:
    found = hashlib.sha256()
    _feed(found, value)
    return found.hexdigest()


def _feed(into: Any, value: Any) -> None:
    """Add a sample to a hash, so that no two different ones give the same bytes."""
    if isinstance(value, Tensor):
        plain = value.detach().cpu().contiguous()
        into.update(f"tensor {plain.dtype} {tuple(plain.shape)} ".encode())
        into.update(plain.reshape(-1).view(torch.uint8).numpy().data if plain.numel() else b"")
    elif isinstance(value, tuple | list):
        into.update(f"list {len(value)} ".encode())
        for one in value:
            _feed(into, one)
    elif isinstance(value, dict):
        into.update(f"dict {len(value)} ".encode())
        for key in sorted(value, key=str):
            _feed(into, key)
            _feed(into, value[key])
    elif isinstance(value, bytes | str):
        data = value.encode() if isinstance(value, str) else value
        into.update(f"{type(value).__name__} {len(data)} ".encode() + data)
    elif value is None or isinstance(value, bool | int | float):
        into.update(f"{value!r} ".encode())
    elif hasattr(value, "__array__"):
        _feed(into, torch.as_tensor(value))
    else:
        raise TypeError(f"samples with a {type(value).__name__}")
