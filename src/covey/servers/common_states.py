"""What do workers have in common after a round? A whole replica, where all of them step alike."""

from __future__ import annotations

from typing import Any

from covey.membership import model_lost
from covey.model.replica import Replica
from covey.program import Node
from covey.servers.packed_state import LARGE
from covey.servers.together import Together


class WholeReplica:
    """Every worker holds the same parameters, float buffers, counters and optimizer state."""

    counts = alike = True

    def __init__(self, replica: Replica) -> None:
        self.replica = replica

    @property
    def lends(self) -> bool:
        """Forward changes buffers; small ones are copied anyway."""
        layout = self.replica.layout
        return all(buffer.nbytes < LARGE for buffer in (*layout.buffers.parts, *layout.others().values()))

    def give(self) -> dict[str, Any]:
        return self.replica.state()

    def take(self, state: dict[str, Any], restarted: bool) -> None:
        self.replica.restore(state)
        self.replica.updates.own_state()


def expect_losses(replica: Replica) -> None:
    """Others may be lost in a sum of gradients, and what replaces them reads this replica's state."""
    replica.compute.keeps = replica.updates.lends = True


async def enter(node: Node, replica: Replica, together: Together) -> bool:
    """Begin, where worker 0's model is the run's; False: all others have ended, and there is nothing left to do."""
    going = await together.enter(replica)
    if not going and node.rank == 0:
        raise model_lost(node.address)
    return going
