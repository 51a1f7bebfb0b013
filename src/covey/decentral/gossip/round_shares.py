"""What workers that come and go send each other in a round, and wait for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from covey.decentral.gossip.leased_gossip import GossipLeases
from covey.message import Address, Message
from covey.model.replica import Replica
from covey.program import Node

S = TypeVar("S", bound=Message)


class RoundShares(Generic[S]):
    """The shares of others in the round that a worker has begun; what comes for another round is dropped at a meeting.

    Args:
        kind: Of messages, with a `step`.
    """

    def __init__(self, node: Node, replica: Replica, kind: type[S]) -> None:
        self.node, self.kind = node, kind
        self.leases = GossipLeases(node, replica, self._take_in)
        self._came: dict[int, S] = {}

    async def conclude(self, ranks: Sequence[int], finish: Callable[[list[S]], None]) -> None:
        """End the round with the shares of these workers, in the order of ranks; without those that do not come."""

        async def gather() -> None:
            for rank in ranks:
                self._came[rank] = await self.node.receive(
                    self.kind, sender=Address("worker", rank), step=self.node.step
                )

        def end() -> None:
            came, self._came = self._came, {}
            finish([came[rank] for rank in sorted(came)])

        await self.leases.conclude(gather, end)

    def _take_in(self) -> None:
        while share := self.node.receive_nowait(self.kind):
            found: Any = share
            if self.leases.begun and found.step == self.node.step:
                self._came[share.sender.rank] = share
