"""What a member of a replica asks of its engine in one step, with the sizes of its messages but no numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from msgspec.structs import replace as changed

from covey.message import Address, Message, vectors
from covey.program import Note, Send
from covey.vector import Vector

TURNS = 1 << 20  # more messages than a member sends another one in a step


@dataclass(frozen=True, slots=True)
class RecordedSend:
    """A message, whose vectors have no numbers, and its number among those on this link in the sender's step."""

    effect: Send
    number: int


@dataclass(frozen=True, slots=True)
class RecordedReceive:
    """Which message of a peer is awaited: of a step that lies this many before the receiver's."""

    kind: type[Message]
    sender: Address
    number: int
    ago: int


@dataclass(frozen=True, slots=True)
class RecordedWork:
    """A piece of computing, and what it asks of others at which progress."""

    load: float
    talks: bool
    prepares: float
    questions: list[tuple[float, list[RecordedEffect]]] = field(default_factory=list)


RecordedEffect = RecordedSend | RecordedReceive | RecordedWork | Note


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """A member's gradient, then the norm of the whole one, and how many samples it counts and has seen."""

    gradient: Sequence[RecordedEffect]
    norm: Sequence[RecordedEffect]
    samples: int
    seen: int


def without_numbers(effect: Send) -> Send:
    """The same, with the sizes of its vectors only."""
    carried = vectors(effect.body)
    names = [name for name in effect.body.__struct_fields__ if isinstance(getattr(effect.body, name), Vector)]
    empty = [Vector(torch.empty_like(part, device="meta") for part in vector.parts) for vector in carried]
    return changed(effect, body=changed(effect.body, **dict(zip(names, empty, strict=True))))
