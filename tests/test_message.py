"""Messages keep what they say through their wire form, and nothing that arrives can do harm."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import covey
from covey.errors import WireError
from covey.message import (
    DTYPES,
    KINDS,
    Address,
    Header,
    Message,
    Shape,
    allocate,
    assemble,
    pack,
    payload,
    raw,
    read_header,
)  # fmt: skip
from covey.vector import Vector
from tests.conftest import Golden

WORKER = Address("worker", 2)
LIMIT = 1 << 20


class Sketch(Message, kw_only=True):
    wire_name = "test.message.sketch"

    step: int
    name: str = ""
    loss: float = 0.0
    first: Vector
    second: Vector


class Quiet(Message, kw_only=True):
    wire_name = "test.message.quiet"
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
        (header("test.message.quiet", Shape("float32", (LIMIT,))), "at most"),
        (header("test.message.quiet", Shape("float32", (2**62, 2**62))), "cannot be"),
        (header("test.message.quiet", Shape("float32", (-1,))), "cannot be"),
        (header("test.message.quiet", Shape("object", (1,))), "cannot be"),
        (header("test.message.quiet", *[Shape("float32", (0,))] * 5000), "tensors"),
        (bytes(2 << 20), "a message header of"),
    ],
    ids=["kind", "size", "overflow", "negative", "type", "tensors", "header"],
)
def test_what_a_header_announces_is_checked(data: bytes, why: str) -> None:
    with pytest.raises(WireError, match=why):
        read_header(data, LIMIT, WORKER)


@pytest.mark.parametrize("named", [0, 2])
def test_tensors_must_be_as_many_as_the_message_names(named: int) -> None:
    got = read_header(header("test.message.quiet", Shape("float32", (3,)), body={"what": named}), LIMIT, WORKER)
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


# -- names on the wire -------------------------------------------------------------------------------------------------


def test_the_names_on_the_wire_are_those_written_down(golden: Golden) -> None:
    """A checkpoint holds them, and a member of another version sends them: to change one is a decision."""
    rows = sorted((ast.literal_eval(line.value), kind.name) for kind, line in declared())
    assert len({name for name, _ in rows}) == len(rows)
    golden("wire_names.txt", "".join(f"{name:<32}{kind}\n" for name, kind in rows))


def declared() -> Iterator[tuple[ast.ClassDef, ast.Assign]]:
    """Every kind of message in the source, also of engines that are not installed here."""
    for file in Path(covey.__file__).parent.rglob("*.py"):
        for kind in ast.walk(ast.parse(file.read_text())):
            for line in kind.body if isinstance(kind, ast.ClassDef) else ():
                if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == "wire_name":
                    yield kind, line


def declare(module: str, name: str, **body: object) -> type[Message]:
    return type(Message)(name, (Message,), {"__module__": module, "__qualname__": name, **body})


def test_a_name_belongs_to_one_kind() -> None:
    first = declare("somewhere", "First", wire_name="test.message.twice")
    with pytest.raises(TypeError, match=r"somewhere.First and elsewhere.Second have one wire_name"):
        declare("elsewhere", "Second", wire_name="test.message.twice")
    assert KINDS["test.message.twice"] is first
    again = declare("somewhere", "First", wire_name="test.message.twice")
    assert KINDS["test.message.twice"] is again, "a cell that is run again, a module that is loaded again"


@pytest.mark.parametrize("body", [{}, *({"wire_name": name} for name in ("Push", "", 3, "x" * 41))])
def test_a_message_without_a_proper_name_is_refused(body: dict[str, object]) -> None:
    with pytest.raises(TypeError, match=r"the message somewhere.Nameless needs a name on the wire: write wire_name = "):
        declare("somewhere", "Nameless", **body)


def test_a_name_is_not_inherited() -> None:
    with pytest.raises(TypeError, match="needs a name on the wire"):
        type(Message)("Child", (Quiet,), {"__module__": "somewhere", "__qualname__": "Child"})


def test_a_file_that_moves_keeps_the_names_of_its_messages() -> None:
    here = declare("covey.central.moved", "Moved", wire_name="test.message.moved")
    sent = pack(here(sender=WORKER))[0]
    del KINDS["test.message.moved"]
    there = declare("covey.decentral.elsewhere", "Moved", wire_name="test.message.moved")
    assert type(assemble(read_header(sent, LIMIT, WORKER), [])) is there
