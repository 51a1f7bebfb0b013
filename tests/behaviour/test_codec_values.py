"""What each codec makes of vectors, in numbers: every setting, on vectors of all kinds, time after time.

One file per codec: tests/golden/values/NAME.txt. It is renewed with COVEY_GOLDEN=write; look at what changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import pytest
import torch

from covey import catalog
from covey.errors import CoveyError, PlanError
from covey.exchange.codec import Codec, Coder, Memory, Seed
from covey.model.flat import Form
from covey.vector import Vector
from tests.behaviour import kept_values
from tests.behaviour.codecs_tried import names, specs
from tests.behaviour.kept_values import number
from tests.behaviour.measured_runs import projected, said
from tests.exchange.coders import flat, form, matrix, places, together

TIMES = 4  # that a coder with a memory is used
SINGLE = 2e-5  # of numbers in single precision


def normal(like: Form, seed: int) -> Vector:
    """The same numbers on every processor: in single precision their last bits depend on its vector instructions, and a
    last bit decides how a number is rounded to half precision.
    """
    chance = torch.Generator().manual_seed(seed)
    return like.like.map(lambda p: (0.1 * torch.randn(p.shape, generator=chance, dtype=torch.float64)).to(p.dtype))


def made(like: Form, change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[int], Vector]:
    return lambda seed: normal(like, seed).map(change)


def spread_out(part: torch.Tensor) -> torch.Tensor:
    """Numbers from 1e-30 to 1e8 of both signs."""
    powers = torch.linspace(-30, 8, part.numel(), dtype=torch.float64)
    return (10.0**powers * part.sign()).to(part.dtype)


def shapes() -> Mapping[str, tuple[Form, Callable[[int], Vector]]]:
    """Forms, and their vectors at each time."""
    double = torch.float64
    return {
        "network": (form(double), partial(normal, form(double))),
        "two types": (form(torch.float32, torch.float16), partial(normal, form(torch.float32, torch.float16))),
        "matrix": (matrix(9, 14, double), partial(normal, matrix(9, 14, double))),
        "odd": (flat(77, double), partial(normal, flat(77, double))),
        "single": (flat(77), partial(normal, flat(77))),
        "one": (flat(1, double), partial(normal, flat(1, double))),
        "none": (flat(0, double), partial(normal, flat(0, double))),
        "zeros": (flat(33, double), made(flat(33, double), torch.zeros_like)),
        "constant": (flat(33, double), made(flat(33, double), lambda part: torch.full_like(part, -0.25))),
        "spread": (flat(39, double), made(flat(39, double), spread_out)),
    }


def each_time(codec: Codec, like: Form, vectors: Callable[[int], Vector]) -> Iterator[str]:
    """What travels and arrives time after time, and what waits in the memory at the end."""
    coder, memory = codec.made(like, Seed(11, 5, 1, 3)), None
    memory, sizes, came = coder.memory, list[int](), list[Vector]()
    for time in range(TIMES):
        wire, memory = coder.encode(vectors(time), memory)
        sizes.append(wire.nbytes)
        came.append(coder.decode(wire))
    yield f"bytes={','.join(map(str, sizes))} expected={number(float(codec.nbytes(like)))}"
    yield " ".join(f"arrives={projected(vector.parts)}" for vector in came)
    if waits := list(tensors(memory)):
        yield f"waits={projected(waits)}"


def tensors(memory: Memory) -> Iterator[torch.Tensor]:
    """All float tensors that a coder remembers."""
    if isinstance(memory, torch.Tensor):
        yield from (memory,) if memory.is_floating_point() else ()
    elif isinstance(memory, Vector):
        yield from memory.parts
    elif isinstance(memory, Mapping | tuple | list):
        for one in memory.values() if isinstance(memory, Mapping) else memory:
            yield from tensors(one)


def summed(codec: Codec, like: Form, vectors: Callable[[int], Vector]) -> str:
    """The sum over three workers by sums of what travels, twice."""
    coders: list[Coder] = [codec.made(like, place) for place in places(3)]
    memories = [coder.memory for coder in coders]
    found = []
    for time in (0, 1):
        totals, size = together(coders, [vectors(10 * time + rank) for rank in range(3)], memories)
        found.append(f"{size}/{projected(totals[0].parts)}")
    return f"totals={' '.join(found)} expected={number(float(codec.sum_bytes(like, 3)))}"


def lines(spec: str) -> Iterator[str]:
    try:
        plain = catalog.codec(spec)
    except PlanError as error:
        yield f"refused: {said(error)}"
        return
    carrying = plain.carrying()
    yield f"is: {plain.name} {of_traits(plain)}"
    for name, (like, vectors) in shapes().items():
        yield from kept(name, lambda like=like, vectors=vectors: each_time(plain, like, vectors))
        if carrying is not plain:
            yield from kept(f"{name}, carrying", lambda like=like, vectors=vectors: each_time(carrying, like, vectors))
        if carrying.traits.summable and name in ("network", "odd", "none", "constant"):
            yield from kept(f"{name}, added", lambda like=like, vectors=vectors: [summed(carrying, like, vectors)])


def kept(name: str, numbers: Callable[..., Any]) -> Iterator[str]:
    try:
        yield f"{name}: {' '.join(numbers())}"
    except CoveyError as error:
        yield f"{name}: refused {said(error)}"


def of_traits(codec: Codec) -> str:
    return " ".join(f"{name}={getattr(codec.traits, name)}" for name in type(codec.traits).__slots__)


@pytest.mark.parametrize("name", names())
def test_codec(name: str) -> None:
    titles = [f"[within {SINGLE}] {spec}" for spec in specs(name)]
    kept_values.compare(name, titles, lambda title: lines(title.partition("] ")[2]), titles)
