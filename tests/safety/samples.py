"""A proper value of any type that is read from a wire, found from the type alone: so a new format is fuzzed at once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any

import msgspec
import torch
from msgspec import inspect

from covey.errors import PlanError
from covey.message import Address, Message
from covey.vector import Vector

ME = Address("worker", 0)
TRIES = 50  # until the parts of a value go together
PLAIN: dict[type[inspect.Type], Callable[[Random], Any]] = {
    inspect.IntType: lambda rng: rng.choice([0, 1, 3, 255, 70_000]),
    inspect.FloatType: lambda rng: rng.choice([0.0, 0.5, 3e5]),
    inspect.StrType: lambda rng: rng.choice(["", "worker 0", "dense"]),
    inspect.BytesType: lambda rng: rng.choice([b"", b"some bytes"]),
    inspect.BoolType: lambda rng: rng.random() < 0.5,
    inspect.NoneType: lambda rng: None,
    inspect.AnyType: lambda rng: rng.choice([None, 3, "word", [1.5]]),
    inspect.RawType: lambda rng: msgspec.Raw(msgspec.msgpack.encode({"step": 3})),
}


def sample(kind: Any, rng: Random) -> Any:
    """A value of this type."""
    return _of(inspect.type_info(kind), rng)


def _of(info: inspect.Type, rng: Random) -> Any:
    if type(info) in PLAIN:
        return PLAIN[type(info)](rng)
    if isinstance(info, inspect.UnionType):
        return _of(rng.choice(info.types), rng)
    if isinstance(info, inspect.ListType | inspect.VarTupleType):
        found = [_of(info.item_type, rng) for _ in range(rng.choice([0, 1, 3]))]
        return found if isinstance(info, inspect.ListType) else tuple(found)
    if isinstance(info, inspect.TupleType):
        return tuple(_of(one, rng) for one in info.item_types)
    if isinstance(info, inspect.DictType):
        return {_of(info.key_type, rng): _of(info.value_type, rng) for _ in range(rng.choice([0, 1, 2]))}
    if isinstance(info, inspect.LiteralType):
        return rng.choice(info.values)
    if isinstance(info, inspect.StructType | inspect.NamedTupleType | inspect.DataclassType):
        for _ in range(TRIES):
            given = {field.name: _of(field.type, rng) for field in info.fields}
            with suppress(PlanError):  # not all numbers go together
                return info.cls(**(given | {"sender": ME} if issubclass(info.cls, Message) else given))
    if isinstance(info, inspect.CustomType) and info.cls is Vector:
        dtype = rng.choice([torch.float32, torch.float16, torch.int64, torch.uint8, torch.bool])
        return Vector([torch.zeros(rng.choice([0, 1, 3]), dtype=dtype) for _ in range(rng.choice([0, 1, 2]))])
    raise NotImplementedError(f"no sample of {info}: teach tests/safety/samples.py")
