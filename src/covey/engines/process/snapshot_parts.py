"""The parts of the scored model, on their way to the scorer."""

from __future__ import annotations

from covey.message import Address, Message
from covey.model.scored import NOTHING, Snapshot
from covey.vector import Vector

SCORER = Address("scorer", 0)


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
    vectors = snapshot.params, snapshot.buffers, snapshot.counters
    return SnapshotPart(
        snapshot.weight, snapshot.piece, *vectors, snapshot.floats, snapshot.counts,
        *(snapshot.averages or (NOTHING, NOTHING)), sender=sender,
    )  # fmt: skip


def snapshot(part: SnapshotPart) -> Snapshot:
    return Snapshot(
        part.piece, part.params, part.buffers, part.weight, part.counters, part.floats, part.counts,
        (part.average, part.average_buffers) if part.average.parts else None,
    )  # fmt: skip
