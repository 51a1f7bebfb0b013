"""Sums on two levels: within a machine first, then between machines, where each sends the vector once."""

from __future__ import annotations

from covey.exchange.collectives import Group, broadcast_tree, gather_ring, reduce_ring, reduce_tree, ring
from covey.program import Node
from covey.vector import Vector, chunks


async def hierarchical(node: Node, vector: Vector, group: Group, *, local: int) -> None:
    """Every `local` neighbouring ranks are a machine: reduce in it, sum between machines, gather in it.

    In machines of equal size each rank carries its slice between them; otherwise the first of each carries all.
    """
    place = group.index(node.address)
    first = place - place % local
    machine = group[first : first + local]
    if len(group) % local:
        return await _through_leaders(node, vector, group[::local], machine)
    await reduce_ring(node, vector, machine)
    mine = chunks(vector, local)[(place + 1) % local]
    await ring(node, vector.cut(mine), group[place % local :: local])
    await gather_ring(node, vector, machine)


async def _through_leaders(node: Node, vector: Vector, leaders: Group, machine: Group) -> None:
    await reduce_tree(node, vector, machine)
    if node.address in leaders:
        await ring(node, vector, leaders)
    await broadcast_tree(node, vector, machine)
