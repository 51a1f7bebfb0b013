"""Sums on two levels: within a machine first, then between machines, where each sends the vector once."""

from __future__ import annotations

from covey.exchange.collectives.ring_slices import Frame, gather, rows, whole
from covey.exchange.collectives.sums import Group, around, binomial, broadcast_tree, reduce_tree, ring
from covey.program import Collective, Node
from covey.vector import Vector


async def hierarchical(
    node: Node, vector: Vector, group: Group, frame: Frame | None = None, *, local: int
) -> None:  # fmt: skip
    """Every `local` neighbouring ranks are a machine: reduce in it, sum between machines, gather in it.

    In machines of equal size each rank carries its slices between them; otherwise the first of each carries all. With 0
    the machines are those on which the members live, and sum in the memory they share. Of a bucket, `frame` says where
    it lies in the gradient.
    """
    if not local:
        return await _between_machines(node, vector, frame or whole(vector), group)
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


async def _between_machines(node: Node, vector: Vector, frame: Frame, group: Group) -> None:
    """The first of each machine carries its sum, and gives the result to the others as the only one that counts."""
    machines = node.machines(group)
    (mine,) = [machine for machine in machines if node.address in machine]
    leaders = tuple(machine[0] for machine in machines)
    if not await Collective(vector, mine, binomial):
        return await _through_leaders(node, vector, frame, leaders, mine)
    if node.address in leaders:
        await ring(node, vector, leaders, frame)
    counts = 1.0 if node.address in leaders else 0.0
    if len(machines) > 1 and not await Collective(vector, mine, binomial, counts):
        await broadcast_tree(node, vector, mine)


async def _through_leaders(node: Node, vector: Vector, frame: Frame, leaders: Group, machine: Group) -> None:
    await reduce_tree(node, vector, machine)
    if node.address in leaders:
        await ring(node, vector, leaders, frame)
    await broadcast_tree(node, vector, machine)
