"""A model as many slices that travel on their own: pieces of single parameters, and the messages that carry them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from covey.flat import Form
from covey.message import Message
from covey.replica import Replica
from covey.vector import Piece, Vector, chunk

Order = Literal["layers", "pulls", "fifo"]


@dataclass(frozen=True, slots=True)
class Manner:
    """How slices travel. None of it changes a number."""

    order: Order = "layers"  # which go first, both ways; only on the way back; as they become ready
    most: int = 0  # that a slice may have; 0: parameters stay whole
    in_bytes: bool = False  # what `most` counts, else numbers
    credit: int = 0  # bytes of a worker that servers have not confirmed; 0: what the links take
    flows: int = 0  # workers that may push to a server at once; 0: all
    timed: bool = False  # what goes first follows from measured times, not from the order of use
    tuned: bool = False  # workers find the credit by measuring


class Slice(NamedTuple):
    """A range of one parameter, and the server that owns it."""

    slot: int  # place of the parameter in the layout
    part: int
    start: int
    stop: int
    server: int


class Gradient(Message):
    """A worker's gradient for a slice; `urgency` is when its parameter is needed, 0 for the first of all."""

    step: int
    place: int
    urgency: int
    grad: Vector


class Updated(Message):
    """A slice of the parameters after the update of `step`; it comes unasked."""

    step: int
    place: int
    params: Vector
    whole: int = 1  # else it is what has changed, encoded


class Confirmed(Message):
    """A server has so many bytes of a worker's gradient."""

    size: int

    counted = False


class Statistics(Message):
    """A worker's float buffers after a step."""

    step: int
    buffers: Vector


class Finished(Message):
    """A worker will push no more."""

    counted = False


def slices(replica: Replica, manner: Manner, servers: int) -> list[Slice]:
    """Every parameter in equal slices, whole where the optimizer needs it whole; servers own them in turn."""
    found: list[Slice] = []
    for place, slot in enumerate(replica.layout.slots):
        length, most = slot.stop - slot.start, manner.most
        if manner.in_bytes:
            most = max(1, most // replica.flat.parts[slot.part].element_size()) if most else 0
        count = max(1, -(-length // most)) if most and replica.elementwise else 1
        for start, stop in (chunk(length, count, index) for index in range(count)):
            found.append(Slice(place, slot.part, slot.start + start, slot.start + stop, len(found) % servers))
    return found


def view(vector: Vector, where: Slice) -> Vector:
    """The numbers of a slice."""
    return Vector([vector.parts[where.part][where.start : where.stop]])


def form(replica: Replica, where: Slice) -> Form:
    """What the numbers of a slice look like."""
    ends = [(0, 0)] * len(replica.flat.parts)
    ends[where.part] = where.start, where.stop
    whole = replica.form(tuple(ends))
    return replace(whole, like=Vector([whole.like.parts[where.part]]), layers=(whole.layers[where.part],))


def piece(parts: int, owned: Iterable[Slice], apart: bool) -> Piece:
    """What a server keeps: every slice a range of its own, or neighbours together."""
    ends: list[list[int]] = [[] for _ in range(parts)]
    for where in owned:
        mine = ends[where.part]
        if mine and mine[-1] == where.start and not apart:
            mine[-1] = where.stop
        else:
            mine += [where.start, where.stop]
    return tuple(tuple(mine) or (0, 0) for mine in ends)


def of_slot(all_slices: Sequence[Slice]) -> list[list[int]]:
    """The places of the slices of each parameter."""
    found: list[list[int]] = []
    for place, where in enumerate(all_slices):
        if where.slot == len(found):
            found.append([])
        found[where.slot].append(place)
    return found
