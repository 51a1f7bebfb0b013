"""Sums on two levels: as they are inside a machine, encoded between machines (HiTopKComm, Shi et al. 2021)."""

from __future__ import annotations

from covey.exchange.auto import means
from covey.exchange.codec import Codec, seed
from covey.exchange.collectives.compressed import Means
from covey.exchange.collectives.ring_slices import gather, rows, whole
from covey.exchange.collectives.sums import Group, Pattern, around, ring
from covey.model.flat import Form
from covey.program import Node
from covey.vector import Vector


class MachineMeans:
    """Means of gradients of machines of `local` neighbouring ranks each.

    The ranks of a machine sum up a slice each; what a codec makes of those slices, not of each rank's gradient, goes to
    the ranks of the same place on other machines; and inside a machine everybody gives its slice of the mean to all.
    """

    def __init__(self, node: Node, codec: Codec, local: int) -> None:
        self.node, self.codec, self.local = node, codec, local
        self.between: Means | None = None

    async def mean(self, vector: Vector, group: Group, pattern: Pattern) -> Vector:
        summed = vector.clone()
        if len(group) % self.local:  # somebody has ended: the few steps that are left are summed as they are
            await ring(self.node, summed, group)
            return summed.mul_(1 / len(group))
        place, local = group.index(self.node.address), self.local
        first = place - place % local
        machine, alike = group[first : first + local], group[place % local :: local]
        grid = rows(summed, whole(summed), local)
        await around(self.node, grid, machine, 0, local - 1)
        mine = gather(row[(place + 1) % local] for row in grid).vector
        if self.between is None:
            made = self.codec.carrying().made(Form.plain(mine), seed(self.node, "between"))
            self.between = means(self.node, made)
        mine.copy_(await self.between.total(mine, alike, pattern))
        await around(self.node, grid, machine, local - 1, 2 * (local - 1))
        return summed.mul_(1 / len(group))
