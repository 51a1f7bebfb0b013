"""How does a worker compute on a batch that is leased to it, of whatever seat?"""

from __future__ import annotations

from functools import partial

from covey.data.leases import Lease
from covey.model.replica import Replica
from covey.program import Node
from covey.vector import Vector


async def leased_gradient(node: Node, replica: Replica, lease: Lease, clip: bool = True) -> Vector:
    """The mean gradient on this batch, at the weights as they are now; see `Replica.gradient`."""
    leased = replica.batch_source.leased
    assert leased is not None, "this role has no data"
    work = partial(replica.compute.run, partial(leased, *lease))
    await replica.compute.perform(node, replica.batch_source, work, lease)
    await replica.announce(node)
    return replica.updates.clip_(replica.grad) if clip else replica.grad
