"""What a role may say: typed messages, and their form on a wire. Nothing here unpickles anything.

On a wire a message is a small msgpack header, which names the kind, the sender and every tensor's dtype and shape,
followed by the raw bytes of the tensors. Sizes are checked before memory is taken.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, TypeVar, get_type_hints

import msgspec
import torch
from torch import Tensor

from covey.address import Address as Address  # noqa: PLC0414  # it is part of what is here
from covey.decoding import UNREADABLE, WireFormat
from covey.errors import WireError
from covey.vector import Vector

NOBODY = Address("nobody", -1)

KINDS: dict[str, type[Message]] = {}
"""Every kind of message by its wire_name."""

WIRE_NAME = r"[a-z0-9_.]{1,40}"


class Message(msgspec.Struct, kw_only=True):
    """Something that a role says to another; each kind is a subclass with a `wire_name`.

    Fields are ints and words, which go into its header, and floats and Vectors, the payload, which is counted.

    Args:
        sender: Who sent it; the engine says so.

    >>> class Progress(covey.Message):
    ...     wire_name = "docs.progress"
    ...     step: int
    >>> Progress(3).step
    3
    """

    sender: Address = NOBODY

    wire_name: ClassVar[str]
    """What it is called on a wire and in a checkpoint: declared by every kind, and the same wherever its file lies."""

    formerly: ClassVar[tuple[str, ...]] = ()
    """What older checkpoints, and members of an older version, call it."""

    counted: ClassVar[bool] = True
    """Whether the payload is exchange; snapshots and control are not."""

    finite: ClassVar[bool] = True
    """Whether NaN and infinite numbers in it are refused, which would spoil whatever they are added to."""

    sized: ClassVar[tuple[str, ...]] = ()
    """Other fields that are exchange, such as keys: they count as they are written."""

    kept: ClassVar[bool] = True
    """Whether a checkpoint keeps it while it lies unread; what only tells who was restarted means nothing later."""

    def __init_subclass__(cls, **settings: Any) -> None:
        super().__init_subclass__(**settings)
        name = cls.__dict__.get("wire_name")
        if not isinstance(name, str) or not re.fullmatch(WIRE_NAME, name):
            raise TypeError(
                f"the message {cls.__module__}.{cls.__qualname__} needs a name on the wire: write "
                'wire_name = "family.word" into it, in small letters, digits, _ and dots, at most 40'
            )
        for known in (name, *cls.__dict__.get("formerly", ())):
            if (other := KINDS.get(known)) is not None and _home(other) != _home(cls):
                raise TypeError(
                    f"the messages {other.__module__}.{other.__qualname__} and {cls.__module__}.{cls.__qualname__} "
                    f"have one wire_name, {known!r}: give one of them another"
                )
            KINDS[known] = cls


def _home(kind: type[Message]) -> tuple[object, str]:
    """Where a kind is written: what is executed twice (a reload, a cell, a script that roles import) is one kind."""
    return getattr(sys.modules.get(kind.__module__), "__file__", kind.__module__), kind.__qualname__


M = TypeVar("M", bound=Message)


class _Fields(dict[type[Message], tuple[Sequence[str], Sequence[str], tuple[int, int, bool] | None]]):
    """The vectors and floats of each kind that was seen, and `sizes` where all messages of the kind have the same."""

    def __missing__(self, kind: type[Message]) -> Any:
        hints = get_type_hints(kind)
        names = [name for name in kind.__struct_fields__ if name != "sender"]
        vectors, floats = (tuple(name for name in names if hints[name] is sort) for sort in (Vector, float))
        alike = None if vectors or kind.sized else (8 * len(floats) * kind.counted, 0, False)
        self[kind] = found = vectors, floats, alike
        return found


_fields = _Fields()


def payload(message: Message) -> int:
    """Bytes of exchange that the message carries: its tensors, 8 for every float, and what else it says counts."""
    return sizes(message)[0]


def sizes(message: Message) -> tuple[int, int, bool]:
    """Its payload, the bytes of its vectors, and whether it has any."""
    names, floats, all_alike = _fields[type(message)]
    if all_alike:
        return all_alike
    carried = sum([getattr(message, name).nbytes for name in names])
    size = carried + 8 * len(floats) if message.counted else 0
    for name in message.sized if message.counted else ():
        size += len(msgspec.msgpack.encode(getattr(message, name)))
    return size, carried, bool(names)


def vectors(message: Message) -> list[Vector]:
    """The message's vectors, in the order of its fields."""
    names, _, _ = _fields[type(message)]
    return [getattr(message, name) for name in names] if names else []


def check_finite(message: Message, to: Address) -> None:
    """Refuse a message that would spoil its receiver's numbers for good."""
    names, _, _ = _fields[type(message)]
    checked = message.finite and message.counted
    if not names or not checked or all(vector.finite() for vector in vectors(message)):
        return
    name, step = type(message).__name__, getattr(message, "step", None)
    what = f"a{'n' if name[0] in 'AEIOU' else ''} {name}" + (f" of step {step}" if step is not None else "")
    raise WireError(
        f"{message.sender} sent {to} {what} with NaN or infinite numbers, which would spoil all others: its training "
        "has diverged; try a smaller learning rate, or clip_norm in the task"
    )


def stamped(message: M, sender: Address, copy: bool) -> M:
    """The message as it leaves `sender`; with `copy` it keeps what its tensors hold now, whatever happens to them."""
    names, _, _ = _fields[type(message)]
    if not names:
        same: M = message.__copy__()  # type: ignore[attr-defined]  # msgspec's stubs lack it
        same.sender = sender
        return same
    given = {name: getattr(message, name) for name in names}
    theirs = {name: Vector((v.clone() if copy else v).parts, origin=sender) for name, v in given.items()}
    return msgspec.structs.replace(message, sender=sender, **theirs)


class Shape(msgspec.Struct, array_like=True, frozen=True):
    """One tensor of a message, as its header announces it."""

    dtype: str
    dims: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return math.prod(self.dims) * DTYPES[self.dtype].itemsize


class Header(msgspec.Struct, array_like=True, frozen=True):
    """The first bytes of a message on a wire."""

    kind: str
    sender: Address
    tensors: tuple[Shape, ...]
    body: msgspec.Raw

    @property
    def nbytes(self) -> int:
        return sum(shape.nbytes for shape in self.tensors)


DTYPES: dict[str, torch.dtype] = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
        torch.uint8, torch.bool, torch.complex64, torch.complex128,
    )
}  # fmt: skip

MAX_TENSORS = 4096
MAX_HEADER = 1 << 20
MOST = 1 << 48  # numbers of a tensor, dimensions of 0 left out: torch counts them in 64 bits

_headers: WireFormat[Header] = WireFormat("message header", Header, most=MAX_HEADER)


def pack(message: Message) -> tuple[bytes, list[Tensor]]:
    """The header, and the tensors whose raw bytes follow it."""
    tensors: list[Tensor] = []

    def take(value: Any) -> Any:
        if isinstance(value, Vector):
            tensors.extend(value.parts)
            return len(value.parts)
        raise TypeError(f"a message cannot carry a {type(value).__name__}: {type(message).__name__}")

    body = msgspec.Raw(msgspec.msgpack.encode(message, enc_hook=take))
    shapes = tuple(Shape(str(t.dtype).removeprefix("torch."), tuple(t.shape)) for t in tensors)
    return msgspec.msgpack.encode(Header(message.wire_name, message.sender, shapes, body)), tensors


def read_header(data: bytes | memoryview, limit: int, sender: Address) -> Header:
    """Check what `sender` announces: a known kind, known dtypes, and no more than `limit` bytes of tensors."""
    header = _headers.read(data, sender)
    if header.sender != sender:
        raise WireError(f"{sender} sent a {header.kind[:40]} in the name of {str(header.sender)[:40]}")
    if header.kind not in KINDS:
        raise WireError(f"{header.sender} sent a message of unknown kind {header.kind[:40]!r}")
    if len(header.tensors) > MAX_TENSORS:
        raise WireError(f"{header.sender} announced {len(header.tensors)} tensors; the limit is {MAX_TENSORS}")
    for shape in header.tensors:
        known = shape.dtype in DTYPES and len(shape.dims) <= 16 and all(dim >= 0 for dim in shape.dims)
        if not known or math.prod(dim or 1 for dim in shape.dims) > MOST:
            raise WireError(f"{header.sender} announced a tensor that cannot be: {shape.dtype[:20]} {shape.dims[:17]}")
    if header.nbytes > limit:
        raise WireError(f"{header.sender} announced {header.nbytes} bytes; this link takes at most {limit}")
    return header


def allocate(header: Header) -> list[Tensor]:
    """Room for the tensors that the header announces."""
    return [torch.empty(shape.dims, dtype=DTYPES[shape.dtype]) for shape in header.tensors]


def assemble(header: Header, tensors: Sequence[Tensor]) -> Message:
    """The message, its tensors having arrived."""
    waiting: Iterator[Tensor] = iter(tensors)

    def give(kind: type, value: Any) -> Any:
        if kind is not Vector or not isinstance(value, int) or not 0 <= value <= MAX_TENSORS:
            raise ValueError(f"a {kind.__name__} cannot be made of this")
        return Vector([next(waiting) for _ in range(value)], origin=header.sender)

    try:
        message = msgspec.msgpack.decode(header.body, type=KINDS[header.kind], dec_hook=give)
    except UNREADABLE as error:
        raise WireError(f"{header.sender} sent a {header.kind} that cannot be read: {error}") from None
    if next(waiting, None) is not None:
        raise WireError(f"{header.sender} sent a {header.kind} with more tensors than it names")
    message.sender = header.sender
    return message


def raw(tensor: Tensor) -> memoryview:
    """The tensor's bytes, without a copy where it is contiguous and on the CPU."""
    flat = tensor.detach().cpu().contiguous().view(-1)
    if flat.stride() != (1,):  # one number cut out with a step counts as contiguous, but cannot be viewed as bytes
        flat = flat.as_strided((flat.numel(),), (1,))
    return memoryview(flat.view(torch.uint8).numpy().data) if flat.numel() else memoryview(b"")


PREFIX, HEAD = 12, 4  # bytes before a message on a stream: how many its header has, and how many its tensors
LARGEST_STREAMED = 1 << 31  # bytes of its tensors


def streamed(message: Message) -> bytes:
    """A message, whose sender is set, as it travels on a stream between two processes of a machine."""
    header, tensors = pack(message)
    body = b"".join(raw(tensor) for tensor in tensors)
    return b"".join((len(header).to_bytes(HEAD), len(body).to_bytes(PREFIX - HEAD), header, body))


class MessageStream:
    """Finds messages in the bytes that one peer sends."""

    def __init__(self, peer: Address, most: int = LARGEST_STREAMED) -> None:
        """`most` is how many bytes the tensors of a message may have."""
        self.peer, self.most = peer, most
        self._bytes = bytearray()

    def feed(self, data: bytes) -> Iterator[Message]:
        """The messages that are complete with these bytes; WireError if they are none."""
        self._bytes += data
        while len(self._bytes) >= PREFIX:
            head, body = int.from_bytes(self._bytes[:HEAD]), int.from_bytes(self._bytes[HEAD:PREFIX])
            if head > MAX_HEADER or body > self.most:
                raise WireError(f"{self.peer} announced a message of {head} + {body} bytes")
            if len(self._bytes) < PREFIX + head + body:
                return
            yield self._message(bytes(self._bytes[PREFIX : PREFIX + head]), PREFIX + head, body)
            del self._bytes[: PREFIX + head + body]

    def _message(self, head: bytes, begin: int, size: int) -> Message:
        header = read_header(head, self.most, self.peer)
        if header.nbytes != size:
            raise WireError(f"{self.peer} announced tensors of {header.nbytes} bytes and sent {size}")
        tensors = allocate(header)
        for tensor in tensors:
            if room := raw(tensor):  # that of an empty tensor cannot be written
                room[:] = self._bytes[begin : begin + len(room)]
                begin += len(room)
        return assemble(header, tensors)
