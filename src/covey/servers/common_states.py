"""What do workers have in common after a round? A whole replica, where all of them step alike."""

from __future__ import annotations

from typing import Any

from covey.membership import model_lost
from covey.model.replica import Replica
from covey.program import Node
from covey.servers.together import Together


class WholeReplica:
    """Every worker holds the same parameters, float buffers, counters and optimizer state."""

    counts = alike = True

    def __init__(self, replica: Replica) -> None:
        self.replica = replica

    def give(self) -> dict[str, Any]:
        return self.replica.state()

    def take(self, state: dict[str, Any], born_again: bool) -> None:
        self.replica.restore(state)


async def enter(node: Node, replica: Replica, together: Together) -> bool:
    """Begin, where worker 0's model is the run's; False: all others have ended, and there is nothing left to do."""
    going = await together.enter(replica)
    if not going and node.rank == 0:
        raise model_lost(node.address)
    return going
