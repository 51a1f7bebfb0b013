"""The mean of what workers have made in one step: gradients by their samples, statistics one like the other."""

from __future__ import annotations

from covey.exchange.collectives.compressed import Means
from covey.exchange.collectives.sums import Group, Pattern
from covey.exchange.gradient_noise import NoiseProbe, due
from covey.exchange.two_levels import MachineMeans
from covey.model.replica import Replica
from covey.program import Node
from covey.vector import Vector


async def mean_gradient(
    node: Node, replica: Replica, grad: Vector, group: Group, pattern: Pattern,
    means: Means | MachineMeans | None = None,
) -> None:  # fmt: skip
    """Turn this worker's gradient, or a part of it, and its float buffers into the group's means, in place.

    `replica.progress` says how many samples the group has in this step. With `means` a gradient travels compressed:
    one of the mean number of samples as it is, and float buffers always.
    """
    mine, all_samples = replica.batch.samples, replica.progress.under_way
    if means:
        grad.copy_(await means.mean(grad * (mine * len(group) / all_samples), group, pattern))
        if replica.buffers.parts:
            await node.sum(replica.buffers, group, pattern, 1 / len(group))
        return
    share = mine / all_samples
    probe = NoiseProbe(node, grad, mine) if due(node.step) else None
    replica.buffers.mul_(1 / (share * len(group)))  # of which everybody counts the same
    await node.sum(grad.join(replica.buffers), group, pattern, share)
    if probe:
        probe.met(grad, all_samples)
