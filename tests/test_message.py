"""Messages keep what they say through their wire form, and nothing that arrives can do harm."""

from __future__ import annotations

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from covey.errors import WireError
from covey.message import DTYPES, Address, Header, Message, Shape, allocate, assemble, pack, payload, raw, read_header
from covey.vector import Vector

WORKER = Address("worker", 2)
LIMIT = 1 << 20


class Sketch(Message, kw_only=True):
    step: int
    name: str = ""
    loss: float = 0.0
    first: Vector
    second: Vector


class Quiet(Message, kw_only=True):
    counted = False
    what: Vector


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    """Any dtype and shape, whole or a view with holes."""
    dims = draw(st.lists(st.integers(0, 4), max_size=3))
    tensor = torch.randint(0, 2, (*dims, 2), dtype=torch.uint8).to(DTYPES[draw(st.sampled_from(sorted(DTYPES)))])
    return tensor[..., 0] if draw(st.booleans()) else tensor


vectors = st.builds(Vector, st.lists(tensors(), max_size=3))
sketches = st.builds(
    Sketch, sender=st.just(WORKER), step=st.integers(-(2**63), 2**63 - 1), name=st.text(max_size=20),
    loss=st.floats(allow_nan=False), first=vectors, second=vectors,
)  # fmt: skip


def over_the_wire(message: Message) -> Message:
    data, sent = pack(message)
    header = read_header(data, LIMIT, WORKER)
    arrived = allocate(header)
    for mine, theirs in zip(arrived, sent, strict=True):
        if mine.numel():
            raw(mine)[:] = raw(theirs)
    return assemble(header, arrived)


def same(one: Vector, other: Vector) -> bool:
    return len(one.parts) == len(other.parts) and all(
        a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
        for a, b in zip(one.parts, other.parts, strict=True)
    )


@given(sketches)
def test_a_message_arrives_as_it_was_sent(message: Sketch) -> None:
    got = over_the_wire(message)
    assert isinstance(got, Sketch)
    assert (got.sender, got.step, got.name, got.loss) == (WORKER, message.step, message.name, message.loss)
    assert same(got.first, message.first)
    assert same(got.second, message.second)


@given(sketches, st.data())
def test_a_damaged_header_is_refused_or_harmless(message: Sketch, data: st.DataObject) -> None:
    good = bytearray(pack(message)[0])
    for at in data.draw(st.lists(st.integers(0, len(good) - 1), min_size=1, max_size=4)):
        good[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(good)))
    for damaged in (bytes(good), bytes(good[:cut])):
        try:
            header = read_header(damaged, LIMIT, WORKER)
            assert header.nbytes <= LIMIT
            assemble(header, [torch.empty(0) for _ in header.tensors])
        except WireError:
            pass


@given(st.binary(max_size=200))
def test_random_bytes_are_no_header(data: bytes) -> None:
    with pytest.raises(WireError):
        read_header(data, LIMIT, WORKER)


def header(kind: str, *shapes: Shape, body: object = None) -> bytes:
    return msgspec.msgpack.encode(Header(kind, WORKER, shapes, msgspec.Raw(msgspec.msgpack.encode(body))))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (header("Nothing"), "unknown kind"),
        (header("test_message.Quiet", Shape("float32", (LIMIT,))), "at most"),
        (header("test_message.Quiet", Shape("float32", (2**62, 2**62))), "at most"),
        (header("test_message.Quiet", Shape("float32", (-1,))), "cannot be"),
        (header("test_message.Quiet", Shape("object", (1,))), "cannot be"),
        (header("test_message.Quiet", *[Shape("float32", (0,))] * 5000), "tensors"),
        (b"\x00" * (2 << 20), "a header of"),
    ],
)
def test_what_a_header_announces_is_checked(data: bytes, why: str) -> None:
    with pytest.raises(WireError, match=why):
        read_header(data, LIMIT, WORKER)


@pytest.mark.parametrize("named", [0, 2])
def test_tensors_must_be_as_many_as_the_message_names(named: int) -> None:
    got = read_header(header("test_message.Quiet", Shape("float32", (3,)), body={"what": named}), LIMIT, WORKER)
    with pytest.raises(WireError):
        assemble(got, allocate(got))


def test_a_header_nested_too_deeply_is_refused() -> None:
    with pytest.raises(WireError):
        read_header(b"\x91" * 100_000, LIMIT, WORKER)


def test_payload_counts_tensors_and_floats_but_not_control() -> None:
    first, second = Vector([torch.zeros(3)]), Vector([torch.zeros(2, dtype=torch.int8)])
    message = Sketch(step=1, loss=0.5, first=first, second=second)
    assert payload(message) == 12 + 2 + 8
    assert payload(Quiet(what=Vector([torch.zeros(9)]))) == 0
