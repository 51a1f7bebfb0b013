"""Where a part of a model lies in the whole: its parameters, float buffers and counters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from torch import Tensor

from covey.model.flat import Flat
from covey.model.scored import Snapshot
from covey.model.slots import Outline, TensorSlot
from covey.vector import Piece, Vector, ranges

Runs = Sequence[tuple[int, int]]
"""Of a tensor that is laid out flat: where each run of its numbers begins, and how long it is."""
WHOLE: Mapping[str, Runs] = {}  # every tensor is there as a whole


def rows_within(runs: Runs, first: int, stop: int) -> list[tuple[int, int]]:
    """What lies from one number to another of those that runs say."""
    found, at = [], 0
    for start, size in runs:
        begin, end = max(at, first), min(at + size, stop)
        if begin < end:
            found.append((start + begin - at, end - begin))
        at += size
    return found


@dataclass(frozen=True, slots=True)
class NumberSpan:
    """A run of numbers: where in the vector of a part of the model, where in that of the whole, and how many."""

    part: int
    start: int
    there: tuple[int, int]  # part and start
    size: int


class ParameterMap:
    """Turns what a part of the model shows of itself into a piece of the whole model."""

    def __init__(self, layout: Flat, whole: Outline, runs: Mapping[str, Runs] = WHOLE) -> None:
        """Of a tensor that is not there as a whole, `runs` says which of its numbers are."""
        self.runs, self.shapes = runs, {slot.name: slot.shape for slot in whole.params}
        self.params = _spans(layout.slots, whole.params, runs)
        self.floats = _spans(layout.buffer_slots, whole.floats)
        self.counters = tuple(whole.counters.index(name) for name in layout.others())
        self.sizes = _parts(whole.params), _parts(whole.floats)

    def of(self, shown: Snapshot, scored: bool) -> Snapshot:
        """The snapshot of a part as one of the whole model."""
        moved = replace(shown, piece=((),) * self.sizes[0], counts=self.counters)
        if not scored:
            return moved
        piece, params = _gathered(self.params, shown.params, shown.piece, self.sizes[0])
        if not shown.buffers.parts:
            return replace(moved, piece=piece, params=params)
        every = tuple((0, part.numel()) for part in shown.buffers.parts)
        floats, buffers = _gathered(self.floats, shown.buffers, every, self.sizes[1])
        return replace(moved, piece=piece, params=params, buffers=buffers, floats=floats)


def _parts(slots: Sequence[TensorSlot]) -> int:
    return 1 + max((slot.part for slot in slots), default=-1)


def _spans(
    mine: Sequence[TensorSlot], whole: Sequence[TensorSlot], runs: Mapping[str, Runs] = WHOLE
) -> list[NumberSpan]:
    """Where each tensor of a part lies there, in the order in which the whole model has them."""
    places = {slot.name: (slot.part, slot.start) for slot in whole}
    spans = []
    for slot in mine:
        (part, first), at = places[slot.name], slot.start
        for start, size in runs.get(slot.name, [(0, slot.stop - slot.start)]):
            spans.append(NumberSpan(slot.part, at, (part, first + start), size))
            at += size
    return sorted(spans, key=lambda span: span.there)


def _gathered(spans: Sequence[NumberSpan], given: Vector, piece: Piece, parts: int) -> tuple[Piece, Vector]:
    """The piece of the whole model that lies in `piece` of a part of it, and its numbers in the whole model's order."""
    ends: list[list[int]] = [[] for _ in range(parts)]
    found = []
    for span in spans:
        for part, first, tensor in _ranges(given, piece):
            begin, end = max(span.start, first), min(span.start + span.size, first + tensor.numel())
            if part == span.part and begin < end:
                where, start = span.there
                ends[where] += [start + begin - span.start, start + end - span.start]
                found.append(tensor[begin - first : end - first])
    return tuple(map(tuple, ends)), Vector(found)


def _ranges(given: Vector, piece: Piece) -> Iterable[tuple[int, int, Tensor]]:
    """The ranges of a piece: of which part, where it begins, and its numbers."""
    places = chain.from_iterable(((part, first) for first, _ in ranges(ends)) for part, ends in enumerate(piece))
    return [(part, first, tensor) for (part, first), tensor in zip(places, given.parts, strict=True)]
