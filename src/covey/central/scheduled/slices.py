"""A model as many slices that travel on their own: pieces of single parameters, and the messages that carry them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Literal, NamedTuple

from covey.central.scheduled.tuning import CREDITS, TOGETHER, Setting, settings
from covey.message import Message
from covey.model.flat import Form
from covey.model.replica import Replica
from covey.vector import Piece, Vector, chunk

Order = Literal["layers", "pulls", "fifo"]

LARGEST = 16 << 20  # bytes of a partition that is tried


@dataclass(frozen=True, slots=True)
class SliceOrder:
    """How slices travel. None of it changes a number."""

    order: Order = "layers"  # which go first, both ways; only on the way back; as they become ready
    most: int = 0  # that a slice may have; 0: parameters stay whole
    in_bytes: bool = False  # what `most` counts, else numbers
    credit: int | None = 0  # bytes of a worker that servers have not confirmed; 0: what the links take; None: measured
    flows: int = 0  # workers that may push to a server at once; 0: all
    timed: bool = False  # what goes first follows from measured times, not from the order of use
    sized: bool = False  # how large a slice is, in bytes, is found by measuring

    def smallest(self, replica: Replica) -> int:
        """The most that a slice may have; where sizes are measured, of the smallest that are tried."""
        if not self.sized:
            return self.most
        parts, slots = replica.flat.parts, replica.layout.slots
        largest = max((slot.stop - slot.start) * parts[slot.part].element_size() for slot in slots)
        return max(1, min(largest, LARGEST) // max(TOGETHER))

    def grid(self, replica: Replica) -> list[Setting]:
        """What may be tried: one setting, where nothing is to be measured."""
        together, credits = TOGETHER if self.sized else (1,), CREDITS if self.credit is None else (1,)
        return settings(together, credits, self.smallest(replica), self.credit)


class Slice(NamedTuple):
    """A range of one parameter, and the server that owns it."""

    slot: int  # place of the parameter in the layout
    part: int
    start: int
    stop: int
    server: int


class Gradient(Message):
    """A worker's gradient for a slice; `urgency` is when its parameter is needed, 0 for the first of all."""

    wire_name = "slices.gradient"

    step: int
    place: int
    urgency: int
    grad: Vector
    count: int = 1  # neighbouring slices that travel together


class Updated(Message):
    """A slice of the parameters after the update of `step`; it comes unasked."""

    wire_name = "slices.updated"

    step: int
    place: int
    params: Vector
    whole: int = 1  # else it is what has changed, encoded
    count: int = 1  # neighbouring slices that travel together


class Confirmed(Message):
    """A server has received this many bytes of a worker's gradient."""

    wire_name = "slices.confirmed"

    size: int

    counted = False


class Statistics(Message):
    """A worker's float buffers after a step."""

    wire_name = "slices.statistics"

    step: int
    buffers: Vector


def slices(replica: Replica, manner: SliceOrder, servers: int) -> list[Slice]:
    """Every parameter in equal slices, whole where the optimizer needs it whole; servers own them in turn.

    Where sizes are measured all slices that may ever travel together have the same owner.
    """
    found: list[Slice] = []
    blocks, block, smallest = 0, max(TOGETHER) if manner.sized else 1, manner.smallest(replica)
    for place, slot in enumerate(replica.layout.slots):
        length, most = slot.stop - slot.start, smallest
        if manner.in_bytes:
            most = max(1, most // replica.flat.parts[slot.part].element_size()) if most else 0
        count = max(1, -(-length // most)) if most and replica.elementwise else 1
        for index in range(count):
            start, stop = chunk(length, count, index)
            owner = (blocks + index // block) % servers
            found.append(Slice(place, slot.part, slot.start + start, slot.start + stop, owner))
        blocks += -(-count // block)
    return found


def span(all_slices: Sequence[Slice], place: int, count: int) -> Slice:
    """Neighbouring slices of one parameter, with the same owner, as one."""
    return all_slices[place]._replace(stop=all_slices[place + count - 1].stop)


def runs(places: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Places that follow one another: the first, and how many."""
    for _, found in groupby(enumerate(places), key=lambda pair: pair[1] - pair[0]):
        run = [place for _, place in found]
        yield run[0], len(run)


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
