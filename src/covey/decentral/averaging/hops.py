"""The binomial tree of MPCA's background exchange, and how models travel along it."""

from __future__ import annotations

from covey.exchange.codec import Codec
from covey.exchange.differences import Shadows, model_coder
from covey.message import Address
from covey.model.replica import Replica
from covey.program import Node
from covey.vector import Vector

MASTER = Address("master", 0)


class Hops:
    """How sums go up and the centre down: as they are, or as what has changed since the last time.

    Every hop up has a shadow of its own, of the sum of its subtree; the centre is one and the same for all.
    """

    def __init__(self, node: Node, replica: Replica, codec: Codec) -> None:
        self.plain = codec.traits.plain
        if self.plain:
            return
        up, down = (model_coder(node, replica, codec, way) for way in ("up", "down"))
        size, children = subtree(node.address, node.workers), relatives(node.address, node.workers)[1]
        self.told = Shadows(node, "told", up, replica.model * size)
        self.heard = Shadows(node, "heard", up, Vector(()))
        for child in children:
            if child.rank not in self.heard.kept:
                self.heard.begin(replica.model * subtree(child, node.workers), child.rank)
        self.centre = Shadows(node, "centre", down, replica.model)

    def up(self, total: Vector) -> Vector:
        return total if self.plain else self.told.tell(total)

    def from_below(self, wire: Vector, child: int) -> Vector:
        return wire if self.plain else self.heard.hear(wire, child).clone()

    def down(self, centre: Vector) -> Vector:
        return centre if self.plain else self.centre.tell(centre)

    def from_above(self, wire: Vector) -> Vector:
        return wire if self.plain else self.centre.hear(wire)


def subtree(who: Address, workers: int) -> int:
    """How many workers' models the sum of a place in the tree holds; the master has none of its own."""
    place = 0 if who == MASTER else who.rank + 1
    return min(place & -place, workers + 1 - place) if place else workers


def relatives(who: Address, workers: int) -> tuple[Address | None, list[Address]]:
    """Parent and children in the binomial tree over the master and all workers, in that order."""
    group = [MASTER, *(Address("worker", rank) for rank in range(workers))]
    me = group.index(who)
    reach = me & -me if me else len(group)  # the lowest bit that is set: how far down the subtree goes
    hops = [1 << bit for bit in range(len(group).bit_length()) if 1 << bit < reach]
    return group[me - reach] if me else None, [group[me + hop] for hop in hops if me + hop < len(group)]
