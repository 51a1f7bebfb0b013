"""Sums on two levels: within a machine first, then between machines, where each sends the vector once."""

from __future__ import annotations

from covey.exchange.collectives import Group, around, broadcast_tree, reduce_tree, ring
from covey.exchange.slices import Frame, gather, rows, whole
from covey.program import Node
from covey.vector import Vector


async def hierarchical(
    node: Node, vector: Vector, group: Group, frame: Frame | None = None, *, local: int
) -> None:  # fmt: skip
    """Every `local` neighbouring ranks are a machine: reduce in it, sum between machines, gather in it.

    In machines of equal size each rank carries its slices between them; otherwise the first of each carries all. Of a
    bucket, `frame` says where it lies in the gradient.
    """
    place = group.index(node.address)
    first = place - place % local
    machine = group[first : first + local]
    frame = frame or whole(vector)
    if len(group) % local:
        return await _through_leaders(node, vector, frame, group[::local], machine)
    grid = rows(vector, frame, local)
    await around(node, grid, machine, 0, local - 1)
    mine = gather(row[(place + 1) % local] for row in grid)
    await ring(node, mine.vector, group[place % local :: local], mine.frame)
    await around(node, grid, machine, local - 1, 2 * (local - 1))


async def _through_leaders(node: Node, vector: Vector, frame: Frame, leaders: Group, machine: Group) -> None:
    await reduce_tree(node, vector, machine)
    if node.address in leaders:
        await ring(node, vector, leaders, frame)
    await broadcast_tree(node, vector, machine)
