"""Parameters as rows of numbers that travel together, and their messages."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from covey.message import Message
from covey.model.replica import Replica
from covey.vector import Vector, ranges

MOST = 1024  # rows of a message


class ParameterRow(NamedTuple):
    """Numbers that travel together."""

    server: int
    part: int
    start: int
    stop: int


class RowChanges(Message):
    """What a worker has changed in some rows of a server."""

    wire_name = "rows.rows"

    rows: list[int]
    changes: Vector


class Renewed(Message):
    """Rows as a server has them, with the first `mine` messages of the worker that they go to.

    After them it lacks nothing that anybody changed in the first `clock` steps.
    """

    wire_name = "rows.renewed"

    clock: int
    mine: int
    rows: list[int]
    values: Vector


class Tick(Message):
    """All changes of a worker's first `clock` steps have been sent; after a step also what is kept of it."""

    wire_name = "rows.tick"

    clock: int
    samples: int
    buffers: Vector


class RowsChanged(Message):
    """There is something to send (from a role to itself)."""

    wire_name = "rows.changed"
    counted = False


def runs_of(replica: Replica, servers: int) -> list[tuple[int, int, int]]:
    """The part, begin and end of every range of numbers that a server has, in the servers' order."""
    pieces = replica.pieces(servers)
    return [(part, *run) for piece in pieces for part, ends in enumerate(piece) for run in ranges(ends)]


def rows_of(replica: Replica, servers: int, length: int) -> list[ParameterRow]:
    """The parameters in rows of at most this many numbers; none lies on two servers."""
    return [
        ParameterRow(server, part, start, min(start + length, last))
        for server, piece in enumerate(replica.pieces(servers))
        for part, ends in enumerate(piece)
        for first, last in ranges(ends)
        for start in range(first, last, length)
    ]


def norms(numbers: Tensor, length: int) -> Tensor:
    """The norm of each row of a range, the last of which may be shorter."""
    rows = torch.nn.functional.pad(numbers, (0, -numbers.numel() % length)).view(-1, length)
    found: Tensor = torch.linalg.vector_norm(rows, dim=1)
    return found
