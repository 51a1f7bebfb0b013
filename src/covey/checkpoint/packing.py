"""Values as JSON with their tensors put aside, and back."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import msgspec
import torch
from torch import Tensor

from covey.errors import CheckpointError
from covey.message import KINDS, Address, Message
from covey.vector import Vector


def pack(value: Any, tensors: dict[str, Tensor]) -> Any:
    """A value as JSON, its tensors put aside under numbers."""
    if isinstance(value, Tensor):
        key = str(len(tensors))
        tensors[key] = value.detach().cpu().clone(memory_format=torch.contiguous_format)
        return {"$tensor": key}
    if isinstance(value, Vector):
        return {"$vector": [pack(part, tensors) for part in value.parts]}
    if isinstance(value, Message):
        fields = {name: pack(getattr(value, name), tensors) for name in value.__struct_fields__}
        return {"$message": value.wire_name, "fields": fields}
    if isinstance(value, tuple):
        return {"$tuple": [pack(item, tensors) for item in value]}
    if isinstance(value, list):
        return [pack(item, tensors) for item in value]
    if isinstance(value, Mapping):
        return {"$dict": [[pack(key, tensors), pack(item, tensors)] for key, item in value.items()]}
    if dataclasses.is_dataclass(value) or isinstance(value, msgspec.Struct):
        return {"$value": msgspec.to_builtins(value, str_keys=True)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    kind = type(value).__name__
    raise CheckpointError(
        f"the state cannot be saved: it contains a {kind}; use numbers, strings, tensors, lists and dicts"
    )


def check_keepable(value: Any) -> None:
    """Refuse what a checkpoint cannot hold."""
    pack(value, {})


def unpack(tree: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(tree, list):
        return [unpack(item, tensors) for item in tree]
    if not isinstance(tree, dict):
        return tree
    if "$tensor" in tree:
        return tensors[tree["$tensor"]]
    if "$vector" in tree:
        parts = [unpack(part, tensors) for part in tree["$vector"]]
        if not all(isinstance(part, Tensor) for part in parts):
            raise ValueError("a vector has something else than tensors")
        return Vector(parts)
    if "$message" in tree:
        fields = {name: unpack(value, tensors) for name, value in tree["fields"].items()}
        return KINDS[tree["$message"]](**{**fields, "sender": Address(*fields["sender"])})
    if "$tuple" in tree:
        return tuple(unpack(item, tensors) for item in tree["$tuple"])
    if "$dict" in tree:
        return {unpack(key, tensors): unpack(item, tensors) for key, item in tree["$dict"]}
    return tree  # a $value, which only the program that remembers it can read
