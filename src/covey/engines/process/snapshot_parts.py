"""The parts of the scored model, on their way to the scorer."""

from __future__ import annotations

import torch

from covey.errors import WireError
from covey.message import Address, Message
from covey.model.scored import NOTHING, Snapshot
from covey.vector import Piece, Vector, ranges

SCORER = Address("scorer", 0)
FEW = 1024  # tensors of a part of the model


class SnapshotPart(Message):
    """A role's part of the scored model."""

    wire_name = "shots.shot"

    weight: float
    piece: tuple[tuple[int, ...], ...]
    params: Vector
    buffers: Vector
    counters: Vector
    floats: tuple[tuple[int, ...], ...] | None
    counts: tuple[int, ...] | None
    average: Vector  # of the parameters; empty where the run keeps no averages
    average_buffers: Vector

    counted = False


def part(snapshot: Snapshot, sender: Address) -> SnapshotPart:
    vectors = joined(snapshot.params, snapshot.piece), snapshot.buffers, snapshot.counters
    average, average_buffers = snapshot.averages or (NOTHING, NOTHING)
    return SnapshotPart(
        snapshot.weight, snapshot.piece, *vectors, snapshot.floats, snapshot.counts, joined(average, snapshot.piece),
        average_buffers, sender=sender,
    )  # fmt: skip


def snapshot(part: SnapshotPart) -> Snapshot:
    averages = (divided(part.average, part.piece), part.average_buffers) if part.average.parts else None
    return Snapshot(
        part.piece, divided(part.params, part.piece), part.buffers, part.weight, part.counters, part.floats,
        part.counts, averages,
    )  # fmt: skip


def joined(vector: Vector, piece: Piece) -> Vector:
    """The same with one tensor for all ranges of a part, where there are more than a message should have.

    A matrix that is divided by its columns has a range for each row.
    """
    lengths = _lengths(piece)
    if len(vector.parts) <= FEW or len(vector.parts) != sum(map(len, lengths)):
        return vector
    left = iter(vector.parts)
    return Vector([torch.cat([next(left).reshape(-1) for _ in inside]) for inside in lengths if inside])


def divided(vector: Vector, piece: Piece) -> Vector:
    """What was joined, as it was."""
    lengths = [inside for inside in _lengths(piece) if inside]
    if sum(map(len, lengths)) <= FEW or len(vector.parts) != len(lengths):
        return vector
    if [part.numel() for part in vector.parts] != [sum(inside) for inside in lengths]:
        raise WireError(f"a part of the model has {vector} where {lengths} numbers belong")
    return Vector([one for part, inside in zip(vector.parts, lengths, strict=True) for one in part.split(inside)])


def _lengths(piece: Piece) -> list[list[int]]:
    return [[last - first for first, last in ranges(ends)] for ends in piece]
