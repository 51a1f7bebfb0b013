"""The binomial tree of MPCA's background exchange, and how models travel along it."""

from __future__ import annotations

from covey.exchange.codec import Codec
from covey.exchange.differences import model_wires
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
        size, children = subtree(node.address, node.workers), relatives(node.address, node.workers)[1]
        self.told = model_wires(node, replica, codec, "told", "up", replica.model * size)
        self.heard = model_wires(node, replica, codec, "heard", "up", Vector(()))
        for child in children:
            self.heard.begin_at(replica.model * subtree(child, node.workers), child.rank)
        self.centre = model_wires(node, replica, codec, "centre", "down")


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
