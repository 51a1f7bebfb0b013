"""What do workers have in common after a round? A whole replica, where all of them step alike."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from covey.membership import model_lost
from covey.model.flat import Flat
from covey.model.replica import Replica
from covey.model.slots import buffers_of
from covey.program import Node
from covey.servers.packed_state import LARGE
from covey.servers.together import Together


class CommonBuffers:
    """All buffers of a model as they were after the last round: forward changes a worker's own before the next is over.

    What `keep` has copied before, and nobody has written since, is not copied again.
    """

    def __init__(self, layout: Flat) -> None:
        self._floats, self._copy = layout.buffers, layout.buffers.clone()
        places = buffers_of(layout.modules).items()
        self._places = {name: (owner, key) for name, (owner, key, one) in places if not one.is_floating_point()}
        self._others: dict[str, Tensor] = {}
        self._seen: dict[str, tuple[Tensor, int]] = {}  # what was copied, and its version
        self.keep()

    def keep(self) -> None:
        """All workers have these."""
        if self._floats.parts:
            self._copy.copy_(self._floats)
        for name, place in self._places.items():
            buffer = _buffer(*place)
            before, version = self._seen.get(name, (None, 0))
            if buffer is not before or buffer._version != version:
                self._others[name], self._seen[name] = buffer.clone(), (buffer, buffer._version)

    def state(self) -> dict[str, Any]:
        """As a replica's state has them."""
        return {"buffers": self._copy, "others": dict(self._others)}


def _buffer(owner: nn.Module, key: str) -> Tensor:
    found = owner._buffers[key]
    assert found is not None, f"the buffer {key} became None while training"
    return found


class WholeReplica:
    """Every worker holds the same parameters, float buffers, counters and optimizer state."""

    counts = alike = True

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.buffers: CommonBuffers | None = None  # where another worker may have to take them over

    @property
    def lends(self) -> bool:
        """Forward changes buffers; small ones are copied anyway."""
        layout = self.replica.layout
        return all(buffer.nbytes < LARGE for buffer in (*layout.buffers.parts, *layout.others().values()))

    def give(self) -> dict[str, Any]:
        return {**self.replica.state(), **(self.buffers.state() if self.buffers else {})}

    def take(self, state: dict[str, Any], restarted: bool) -> None:
        self.replica.restore(state)
        self.replica.updates.own_state()
        self.settle()

    def settle(self) -> None:
        if self.buffers is None:
            self.buffers = CommonBuffers(self.replica.layout)
        self.buffers.keep()


def expect_losses(replica: Replica) -> None:
    """Others may be lost in a sum of gradients, and what replaces them reads this replica's state."""
    replica.compute.keeps = replica.updates.lends = True


async def enter(node: Node, replica: Replica, together: Together) -> bool:
    """Begin, where worker 0's model is the run's; False: all others have ended, and there is nothing left to do."""
    going = await together.enter(replica)
    if not going and node.rank == 0:
        raise model_lost(node.address)
    return going
