"""Values as JSON with their tensors put aside, and back."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import torch
from torch import Tensor

from covey.errors import CheckpointError
from covey.message import KINDS, Address, Message
from covey.vector import Vector


def pack(value: Any, tensors: dict[str, Tensor], path: str = "value", *, copy: bool = True) -> Any:
    """A value as JSON, its tensors, or copies of them, put aside under their paths."""
    if isinstance(value, Tensor):
        key = path if path not in tensors else f"{path}~{len(tensors)}"
        where = "meta" if value.is_meta else "cpu"  # what is only timed has no numbers
        tensors[key] = value.detach().to(where, copy=copy, memory_format=torch.contiguous_format)
        return {"$tensor": key}
    if isinstance(value, Vector):
        return {"$vector": _each(value.parts, tensors, path, copy)}
    if isinstance(value, Message):
        named = {name: getattr(value, name) for name in value.__struct_fields__}
        fields = {name: pack(item, tensors, f"{path}/{name}", copy=copy) for name, item in named.items()}
        return {"$message": value.wire_name, "fields": fields}
    if isinstance(value, tuple):
        return {"$tuple": _each(value, tensors, path, copy)}
    if isinstance(value, list):
        plain = all(type(item) is int for item in value)  # the state of a random generator has hundreds
        return list(value) if plain else _each(value, tensors, path, copy)
    if isinstance(value, Mapping):
        pairs = [(pack(key, tensors, path), key, item) for key, item in value.items()]
        return {"$dict": [[key, pack(item, tensors, f"{path}/{name}", copy=copy)] for key, name, item in pairs]}
    if dataclasses.is_dataclass(value) or isinstance(value, msgspec.Struct):
        return {"$value": msgspec.to_builtins(value, str_keys=True)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    kind = type(value).__name__
    raise CheckpointError(
        f"the state cannot be saved: it contains a {kind}; use numbers, strings, tensors, lists and dicts"
    )


def _each(values: Iterable[Any], tensors: dict[str, Tensor], path: str, copy: bool) -> list[Any]:
    return [pack(item, tensors, f"{path}/{number}", copy=copy) for number, item in enumerate(values)]


def check_keepable(value: Any) -> None:
    """Refuse what a checkpoint cannot hold."""
    pack(value, {})


def stands_for(kept: Any, fresh: Any) -> bool:
    """Whether a value that was read can be what began as `fresh`: lists and dicts grow, tensors and tuples do not."""
    if isinstance(fresh, Tensor):
        return isinstance(kept, Tensor) and kept.dtype == fresh.dtype and kept.shape == fresh.shape
    if isinstance(fresh, Vector):
        return isinstance(kept, Vector) and kept.like(fresh)
    if isinstance(fresh, tuple):
        return isinstance(kept, tuple) and len(kept) == len(fresh) and all(map(stands_for, kept, fresh))
    if isinstance(fresh, list):
        return isinstance(kept, list) and all(map(stands_for, kept, fresh))
    if isinstance(fresh, dict):
        return isinstance(kept, dict) and all(stands_for(kept[key], fresh[key]) for key in kept.keys() & fresh.keys())
    if isinstance(fresh, bool | int | float):
        return isinstance(kept, bool | int | float | None)
    return True


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
