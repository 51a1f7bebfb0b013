"""Coders of every codec, forms for them to work on, and groups in which they meet."""

from __future__ import annotations

from collections.abc import Coroutine, Generator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import nn

from covey.exchange.codec import Codec, Coder, Memory, Seed
from covey.exchange.codecs.by_name import CODECS
from covey.model.flat import Flat, Form, ParameterRange
from covey.vector import Vector

SPECS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in CODECS},
    "int8 of all": ("int8", {"block": 0, "rounding": "nearest"}),
    "fixed16 to nearest": ("fixed16", {"rounding": "nearest"}),
    "terngrad, last dense": ("terngrad", {"dense_last": True}),
    "terngrad of all": ("terngrad", {"scope": "global", "clip": 0.0}),
    "dorefa of one bit": ("dorefa", {"bits": 1}),
    "qsgd packed": ("qsgd", {"coding": "packed", "levels": 200}),
    "qsgd of one level": ("qsgd", {"levels": 1, "bucket": 0}),
    "strom as it is": ("strom", {"threshold": 0.3, "adaptive": False}),
    "topk by layer": ("topk", {"density": 0.1, "scope": "layer"}),
    "randomk unbiased": ("randomk", {"density": 0.3, "unbiased": True}),
    "sketch of one bit": ("sketch", {"bits": 1, "keep": 0.5}),
    "sketch of all, as they lie": ("sketch", {"bits": 4, "keep": 1.0, "rotate": False}),
    "dgc without warm-up": ("dgc", {"density": 0.05, "warmup": 0.0, "nesterov": True, "clip": 3.0}),
    "sbc of many": ("sbc", {"density": 0.2}),
    "sbc with momentum": ("sbc", {"density": 0.2, "momentum": 0.9}),
    "powersgd of any matrix": ("powersgd", {"rank": 3, "saving": 0.0, "dense": 2}),
    "powersgd alternating": ("powersgd", {"rank": 1, "alternating": True}),
}  # fmt: skip
"""Every codec as it comes, and some with other settings."""


@cache
def codec(spec: str) -> Codec:
    name, settings = SPECS[spec]
    made: Codec = CODECS[name](**settings).codec()
    return made


class Net(nn.Module):
    """Matrices, a kernel and biases."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(21, 13)
        self.middle = nn.Conv2d(3, 5, 3)
        self.last = nn.Linear(13, 4)


@cache
def form(*dtypes: torch.dtype) -> Form:
    """Of a small network: its first layer of the first type, its last of the last."""
    net = Net()
    net.to(dtypes[0] if dtypes else torch.float32)
    net.last.to(dtypes[-1] if dtypes else torch.float32)
    flat = Flat(net)
    return replace(flat.form(tuple((0, part.numel()) for part in flat.params.parts)), epoch=3)


def flat(count: int, dtype: torch.dtype = torch.float32) -> Form:
    """Of one layer without a shape."""
    return replace(Form.plain(Vector([torch.zeros(count, dtype=dtype)])), epoch=3)


def matrix(rows: int, columns: int, dtype: torch.dtype = torch.float32) -> Form:
    like = Vector([torch.zeros(rows * columns, dtype=dtype)])
    return Form(like, ((ParameterRange("w", 0, rows * columns, (rows, columns)),),), epoch=3)


def normal(like: Form, seed: int = 0, scale: float = 0.1) -> Vector:
    chance = torch.Generator().manual_seed(seed)
    return like.like.map(lambda p: (scale * torch.randn(p.shape, generator=chance)).to(p.dtype))


def whole(vector: Vector) -> torch.Tensor:
    """All numbers in one float64 tensor."""
    return torch.cat([part.double() for part in vector.parts])


def waiting(memory: Memory) -> torch.Tensor:
    """What a coder that carries on has not sent yet."""
    found = _vectors(memory)
    assert found, "it carries nothing on"
    return whole(found[0])


def _vectors(memory: Memory) -> list[Vector]:
    if isinstance(memory, Vector):
        return [memory]
    return [found for one in memory for found in _vectors(one)] if isinstance(memory, tuple | list) else []


def roundtrip(coder: Coder, vector: Vector, memory: Memory = None) -> Vector:
    """What arrives of a vector."""
    return coder.decode(coder.encode(vector, coder.memory if memory is None else memory)[0])


class _Meet:
    """Waits until all have brought a vector."""

    def __init__(self, vector: Vector) -> None:
        self.vector = vector

    def __await__(self) -> Generator[_Meet, None, None]:
        yield self


async def add(vector: Vector) -> None:
    await _Meet(vector)


def places(workers: int, seed: int = 5) -> list[Seed]:
    return [Seed(seed + rank, seed, rank, workers) for rank in range(workers)]


def together(coders: Sequence[Coder], vectors: Sequence[Vector], memories: list[Memory]) -> tuple[list[Vector], int]:
    """Everybody's total, and the bytes that each of them brought; memories are those of the next time."""
    programs: list[Coroutine[Any, Any, Any]] = []
    for coder, vector, memory in zip(coders, vectors, memories, strict=True):
        assert coder.total
        programs.append(coder.total(vector, memory, add))  # type: ignore[arg-type]
    totals, size = dict[int, Vector](), 0
    while len(totals) < len(programs):
        met = list[Vector]()
        for rank, program in enumerate(programs):
            try:
                met.append(program.send(None).vector)
            except StopIteration as done:
                totals[rank], memories[rank] = done.value
        assert len(met) in (0, len(programs)), "all meet, or none"
        if met:
            size += met[0].nbytes
            summed = met[0].clone()
            for other in met[1:]:
                summed.add_(other)
            for one in met:
                one.copy_(summed)
    return [totals[rank] for rank in range(len(programs))], size
