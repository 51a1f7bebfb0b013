"""The parts of the scored model, on their way to the scorer."""

from __future__ import annotations

from covey.message import Address, Message
from covey.replica import Snapshot
from covey.vector import Vector

SCORER = Address("scorer", 0)


class Shot(Message):
    """A role's part of the scored model."""

    wire_name = "shots.shot"

    weight: float
    piece: tuple[tuple[int, ...], ...]
    params: Vector
    buffers: Vector
    counters: Vector
    floats: tuple[tuple[int, ...], ...] | None
    counts: tuple[int, ...] | None

    counted = False


def shot(snapshot: Snapshot, sender: Address) -> Shot:
    vectors = snapshot.params, snapshot.buffers, snapshot.counters
    return Shot(snapshot.weight, snapshot.piece, *vectors, snapshot.floats, snapshot.counts, sender=sender)


def snapshot(shot: Shot) -> Snapshot:
    return Snapshot(shot.piece, shot.params, shot.buffers, shot.weight, shot.counters, shot.floats, shot.counts)
