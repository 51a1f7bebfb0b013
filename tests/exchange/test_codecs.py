"""What every codec keeps to (taxonomy D.0)."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from covey.checkpoint import RoleState
from covey.errors import WireError
from covey.exchange.codec import Codec, Memory, error_feedback
from covey.message import Address, Message, payload
from covey.model.flat import Form, ParameterRange
from covey.vector import Vector
from tests.exchange.coders import (
    SPECS,
    codec,
    flat,
    form,
    normal,
    places,
    roundtrip,
    together,
    waiting,
    whole,
)  # fmt: skip

EVERY = pytest.mark.parametrize("spec", SPECS)
DEPENDS = {
    "qsgd", "qsgd of one level", "sbc", "sbc of many", "sbc with momentum", "strom", "strom as it is", "threshold",
    "entropy", "dgc",
}  # fmt: skip
"""Where the numbers decide how many bytes travel."""
CARRY = [spec for spec in SPECS if codec(spec).fused]
UNBIASED = [
    "fixed16", "int8", "natural", "dorefa", "dorefa of one bit", "qsgd", "qsgd packed", "qsgd of one level",
    "terngrad of all", "randomk unbiased", "sketch", "sketch of one bit", "sketch of all, as they lie",
]  # fmt: skip
ADD = [spec for spec in SPECS if codec(spec).traits.summable]


class Letter(Message):
    """Carries a wire."""

    wire_name = "test.codecs.letter"

    wire: Vector


@EVERY
@pytest.mark.parametrize("dtypes", [(torch.float32,), (torch.bfloat16,), (torch.float16, torch.float64)])
def test_the_form_comes_back_and_the_bytes_are_the_formulas(spec: str, dtypes: tuple[torch.dtype, ...]) -> None:
    shape, made = form(*dtypes), codec(spec)
    coder = made.made(shape, 3)
    vector = normal(shape)
    before, memory = vector.clone(), coder.memory
    for _ in range(3):
        wire, memory = coder.encode(vector, memory)
        decoded = coder.decode(wire)
        assert decoded.like(shape.like) and decoded.finite()
    assert all(map(torch.equal, vector.parts, before.parts)), "encoding changes nothing"
    assert payload(Letter(wire=wire)) == wire.nbytes
    if spec not in DEPENDS:
        assert wire.nbytes == made.nbytes(shape)


@pytest.mark.parametrize("spec", ["qsgd", "qsgd of one level", "sbc", "sbc of many"])
def test_expected_bytes_are_those_of_normal_numbers(spec: str) -> None:
    shape = flat(20_000)
    coder = codec(spec).made(shape, 3)
    wire, _ = coder.encode(normal(shape), coder.memory)
    assert wire.nbytes == pytest.approx(codec(spec).nbytes(shape), rel=0.2 if spec == "qsgd of one level" else 0.05)


@EVERY
@pytest.mark.parametrize("count", [0, 1, 7])
def test_few_numbers_and_none(spec: str, count: int) -> None:
    coder = codec(spec).carrying().made(flat(count), 3)
    memory = coder.memory
    for _ in range(3):
        wire, memory = coder.encode(normal(flat(count)), memory)
        assert coder.decode(wire).numel == count


@EVERY
def test_zeros_stay_zeros(spec: str) -> None:
    shape = form()
    for coder in (codec(spec).made(shape, 3), error_feedback(codec(spec)).made(shape, 3)):
        decoded = whole(roundtrip(coder, normal(shape, scale=0)))
        assert decoded.abs().max() == 0


@EVERY
@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_what_is_no_number_is_refused_and_nothing_is_forgotten(spec: str, value: float) -> None:
    shape, made = form(torch.float32, torch.float64), codec(spec).carrying()
    coder = made.made(shape, 3)
    memory = coder.memory
    for seed in range(3):
        _, memory = coder.encode(normal(shape, seed), memory)
    before, bad = copy.deepcopy(_plain(memory)), normal(shape, 9)
    bad.parts[1][-1] = value
    if made.name in ("fp16", "bf16", "truncated", "auto"):  # these show it on the wire, or when decoded
        wire, _ = coder.encode(bad, memory)
        with pytest.raises(WireError, match="worker 1 sent a gradient with NaN"):
            coder.decode(Vector(wire.parts, Address("worker", 1))).finite() or _refused()
    else:
        with pytest.raises(WireError, match="NaN or infinite.*smaller learning rate"):
            coder.encode(bad, memory)
    assert _plain(memory) == before


def _refused() -> None:
    raise WireError("worker 1 sent a gradient with NaN")


def _plain(memory: Memory) -> Any:
    """A memory as lists, which can be compared."""
    if isinstance(memory, Vector):
        return [part.tolist() for part in memory.parts]
    if isinstance(memory, torch.Tensor):
        return memory.tolist()
    return [_plain(one) for one in memory] if isinstance(memory, tuple | list) else memory


# -- what is dropped comes later --------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", [spec for spec in CARRY if spec != "entropy"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_nothing_is_lost(spec: str, dtype: torch.dtype) -> None:
    """sum of what was decoded + what waits == sum of what was given."""
    shape, made = form(dtype), error_feedback(codec(spec))
    assert made.traits.feedback == "own" and error_feedback(made) is made
    coder = made.made(shape, 3)
    memory, given, sent = coder.memory, torch.zeros(shape.like.numel).double(), torch.zeros(shape.like.numel).double()
    for seed in range(8):
        vector = normal(shape, seed)
        wire, memory = coder.encode(vector, memory)
        given, sent = given + whole(vector), sent + whole(coder.decode(wire))
    assert (given - sent - waiting(memory)).norm() <= 2e-6 * max(given.norm(), waiting(memory).norm())


@pytest.mark.parametrize("spec", ["int8 of all", "topk", "strom", "dorefa", "onebit", "sbc", "qsgd"])
def test_the_fused_form_is_error_feedback(spec: str) -> None:
    """Adding what was dropped before coding, in a pass of its own, gives the same."""
    made = codec(spec)
    fused = error_feedback(made).made(form(), 3)
    plain = error_feedback(_without_fused(made)).made(form(), 3)
    one, other = fused.memory, plain.memory
    for seed in range(5):
        vector = normal(form(), seed)
        (wire, one), (expected, other) = fused.encode(vector, one), plain.encode(vector, other)
        torch.testing.assert_close(whole(fused.decode(wire)), whole(plain.decode(expected)), rtol=1e-5, atol=1e-6)


def _without_fused(made: Codec) -> Codec:
    from dataclasses import replace

    return replace(made, fused=None)


# -- chance -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", UNBIASED)
def test_the_mean_is_right(spec: str) -> None:
    """The mean of many comes as near as chance lets it."""
    shape, many = flat(400), 200
    coder = codec(spec).made(shape, 11)
    vector, memory, found = normal(shape, 1), coder.memory, []
    for _ in range(many):
        wire, memory = coder.encode(vector, memory)
        found.append(whole(coder.decode(wire)))
    draws = torch.stack(found)
    assert float((draws[0] - draws[1]).norm()), "it rounds by chance"
    off = (draws.mean(0) - whole(vector)).square().sum() / (draws.var(0).sum() / many)
    assert float(off) == pytest.approx(1, abs=0.4), "in units of what chance leaves of a mean of so many"


@EVERY
def test_chance_comes_from_the_seed_alone(spec: str) -> None:
    shape, vector = form(), normal(form())
    state = torch.get_rng_state()
    torch.manual_seed(1)
    first = roundtrip(codec(spec).made(shape, 8), vector)
    torch.manual_seed(2)
    assert all(map(torch.equal, first.parts, roundtrip(codec(spec).made(shape, 8), vector).parts))
    assert torch.equal(torch.get_rng_state(), torch.manual_seed(2).get_state()), "the global chance is left alone"
    torch.set_rng_state(state)
    if spec in UNBIASED:
        assert not torch.equal(whole(first), whole(roundtrip(codec(spec).made(shape, 9), vector)))
        again = codec(spec).made(shape, 8)
        (one, memory) = again.encode(vector, again.memory)
        assert not torch.equal(whole(again.decode(one)), whole(again.decode(again.encode(vector, memory)[0])))


@pytest.mark.parametrize("spec", ["terngrad", "dorefa"])
def test_equal_layers_are_rounded_by_chances_of_their_own(spec: str) -> None:
    layers = tuple(ParameterRange(name, start, start + 100, (100,)) for name, start in (("a", 0), ("b", 100)))
    numbers = normal(flat(100)).parts[0]
    twice = Vector([numbers.repeat(2)])
    coder = codec(spec).made(Form(twice.map(torch.zeros_like), (layers,), epoch=3), 8)
    first, second = roundtrip(coder, twice).parts[0].split(100)
    assert not torch.equal(first, second)


@EVERY
def test_a_checkpoint_keeps_what_a_coder_remembers(spec: str, tmp_path: Path) -> None:
    """After a restart the wires are those of a run that went on, to the bit."""
    shape, who = form(torch.float32, torch.float64), Address("worker", 0)
    coder = codec(spec).carrying().made(shape, 3)
    memory = coder.memory
    for seed in range(3):
        _, memory = coder.encode(normal(shape, seed), memory)
    state = RoleState.of(done=3, seconds=0.0, memories={"codec": memory}, replica={}, mailbox=[], rng=Random(0))
    state.write(tmp_path, who)
    kept = RoleState.read(tmp_path, who).recall("codec", coder.memory)
    fresh = codec(spec).carrying().made(shape, 3)
    for seed in range(3, 7):
        wire, memory = coder.encode(normal(shape, seed), memory)
        again, kept = fresh.encode(normal(shape, seed), kept)
        assert all(map(torch.equal, wire.parts, again.parts))


# -- sums -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", ADD)
@pytest.mark.parametrize("carries", [False, True])
def test_what_adds_up(spec: str, carries: bool) -> None:
    """All hold the same bits; with error feedback the total and all that waits are the sum of all that was given."""
    made = error_feedback(codec(spec)) if carries else codec(spec)
    if not made.traits.summable:
        assert carries and spec in ("fp16", "bf16"), "what is rounded on every hop cannot be carried on"
        return
    shape, many = form(torch.float32, torch.float64), 3
    coders = [made.made(shape, place) for place in places(many)]
    memories = [coder.memory for coder in coders]
    given, told = torch.zeros(shape.like.numel).double(), torch.zeros(shape.like.numel).double()
    for turn in range(6):
        vectors = [normal(shape, 10 * turn + rank) for rank in range(many)]
        totals, size = together(coders, vectors, memories)
        assert all(torch.equal(whole(totals[0]), whole(one)) for one in totals)
        given += sum(map(whole, vectors))
        told += whole(totals[0])
        bound = made.summed(shape, many) if made.summed else made.nbytes(shape)
        assert size == bound or "powersgd" in spec
    if carries:
        left = sum(waiting(memory) for memory in memories)
        assert (given - told - left).norm() < 3e-6 * given.norm()


# -- sizes alone ------------------------------------------------------------------------------------------------------


@EVERY
def test_without_numbers_only_the_size_is_told(spec: str) -> None:
    shape = form()
    empty = type(shape)(shape.like.map(lambda part: part.to("meta")), shape.layers, shape.last, shape.epoch)
    coder = codec(spec).carrying().made(empty, 3)
    wire, _ = coder.encode(empty.like, coder.memory)
    assert wire.nbytes == round(codec(spec).carrying().nbytes(shape))
    assert all(part.is_meta for part in wire.parts[spec == "auto" :]), "all but which option it is"
    assert coder.decode(wire).like(shape.like)
