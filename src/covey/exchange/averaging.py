"""The mean of what workers have made in one step: gradients by their samples, statistics one like the other."""

from __future__ import annotations

from covey.exchange.collectives import Group, Pattern
from covey.program import Node
from covey.replica import Replica
from covey.vector import Vector


async def mean_gradient(node: Node, replica: Replica, grad: Vector, group: Group, pattern: Pattern) -> None:
    """Turn this worker's gradient, or a part of it, and its float buffers into the group's means, in place.

    `replica.under_way` says how many samples the group has in this step.
    """
    share = replica.batch.samples / replica.under_way
    replica.buffers.mul_(1 / (share * len(group)))  # of which everybody counts the same
    await node.sum(grad.join(replica.buffers), group, pattern, share)
