"""What comes over a wire is looked at before it is used: a broken one is refused, and its sender named."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest
import torch
from torch import Tensor

from covey.errors import WireError
from covey.exchange.codec import Coder
from covey.exchange.codecs.qsgd import Qsgd, written
from covey.message import Address
from covey.vector import Vector
from tests.exchange.coders import SPECS, codec, form, normal

PEER = Address("worker", 1)


def made(spec: str) -> tuple[Coder, Vector]:
    """A coder, and the wire of a vector after its warm-up."""
    coder = codec(spec).made(form(), 3)
    memory = coder.memory
    for seed in range(3):
        wire, memory = coder.encode(normal(form(), seed), memory)
    return coder, wire


def shorter_and_longer(wire: Vector) -> Iterator[list[Tensor]]:
    """Each part one number too short, one too long, of another type, of another shape, or not there."""
    for index, part in enumerate(wire.parts):
        words = len(wire.parts) == 2 and part.dtype == torch.int32  # of `strom`: any number of them
        others = [] if words else [part[:-1]]
        others += [torch.cat([part, part[:1]]), part.view(-1, 1)]
        others += [part.to(torch.complex64), part.to(torch.int64) if part.dtype != torch.int64 else part.int()]
        for other in others:
            if other.numel() != part.numel() or other.dtype != part.dtype or other.dim() != part.dim():
                yield [*wire.parts[:index], other, *wire.parts[index + 1 :]]
        yield [*wire.parts[:index], *wire.parts[index + 1 :]]
    yield [*wire.parts, wire.parts[0]]
    yield []


@pytest.mark.parametrize("spec", SPECS)
def test_a_wire_of_another_shape_is_refused(spec: str) -> None:
    coder, wire = made(spec)
    for parts in shorter_and_longer(wire):
        with pytest.raises(WireError, match="^worker 1 sent "):
            coder.decode(Vector(parts, PEER))


@pytest.mark.parametrize("spec", SPECS)
def test_nonsense_of_the_right_size_is_refused_or_decoded(spec: str) -> None:
    """Never an index error, a crash, or a vector of another form; what is decoded is finite."""
    coder, wire = made(spec)
    chance = Random(7)
    for _ in range(25):
        parts = [part.clone() for part in wire.parts]
        for part in parts:
            _spoil(part, chance)
        why = ""
        try:
            assert coder.decode(Vector(parts, PEER)).like(form().like)
        except WireError as error:
            why = str(error)
        assert why.startswith("worker 1 sent ") or not why


def _spoil(part: Tensor, chance: Random) -> None:
    """Some bytes of it, or all; floats stay numbers, as a message's are looked at when they arrive."""
    if part.is_floating_point():
        part *= chance.choice([1, -1, 0, 1e3])
        return
    raw = part.view(torch.uint8)
    for _ in range(chance.choice([0, 1, 4, 4 * raw.numel()]) if raw.numel() else 0):
        raw[chance.randrange(raw.numel())] = chance.randrange(256)


@pytest.mark.parametrize(
    ("spec", "part", "value", "why"),
    [
        ("topk", 0, -1, "places that do not rise from 0 to less than"), ("topk", 0, 10**6, "places that do not rise"),
        ("strom as it is", 0, -1.0, "a threshold of -1"), ("sbc", 1, -5, "-5 places for"),
        ("qsgd", 1, 9, "written in the way 9"), ("powersgd of any matrix", 0, 7, "a flag of 7"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(spec: str, part: int, value: float, why: str) -> None:
    coder, wire = made(spec)
    wire.parts[part][0] = value
    with pytest.raises(WireError, match=f"^worker 1 sent .*{why}.*another codec, or its message is broken"):
        coder.decode(Vector(wire.parts, PEER))


def test_a_place_comes_once() -> None:
    coder, wire = made("topk by layer")
    wire.parts[0][1] = wire.parts[0][0]
    with pytest.raises(WireError, match="places that do not rise"):
        coder.decode(Vector(wire.parts, PEER))


def test_levels_are_those_that_there_are() -> None:
    """A peer with more levels would be decoded to numbers beyond its norm."""
    theirs = Qsgd(levels=40).codec().made(form(), 3)
    wire, _ = theirs.encode(normal(form()), theirs.memory)
    with pytest.raises(WireError, match="worker 1 sent a level above 7"):
        codec("qsgd").made(form(), 3).decode(Vector(wire.parts, PEER))


@pytest.mark.parametrize("level", [-8, 8, -129])
def test_a_level_is_refused_whichever_way_it_is_too_large(level: int) -> None:
    coder, wire = made("qsgd")
    levels = torch.zeros(form().like.parts[0].numel(), dtype=torch.int64)
    for number in (-7, 7, level):
        levels[3] = number
        parts = [wire.parts[0], *written(levels), *wire.parts[3:]]
        if number != level:
            coder.decode(Vector(parts, PEER))
    with pytest.raises(WireError, match="worker 1 sent a level above 7"):
        coder.decode(Vector(parts, PEER))
