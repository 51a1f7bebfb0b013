"""Gossip among workers that come and go: which batches does a model contain, and who does which next?

All keep the same list of batches, and deal it out in rounds: each works out alone what everybody does, and nobody waits
for anybody. With every model travels how many batches of each worker it contains. Where somebody goes or comes, all
meet: a batch of one that is gone counts if a model contains it that is still there, and goes back to the list if not.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from covey.data.leases import Lease
from covey.decentral.gossip.gossip_lists import GossipList
from covey.membership import ViewChanged, all_lost
from covey.message import Address, Message
from covey.model.replica import Replica
from covey.program import Memory, Node
from covey.servers.leased_batches import leased_gradient
from covey.servers.packed_state import unpacked
from covey.servers.round_messages import Parting, PeerState, RoundStanding
from covey.topology import Graph
from covey.vector import Vector


class GossipLeases(GossipList):
    """One worker among those of its run that are there.

    Args:
        take_in: Takes in all that has come from others: when all meet, nothing is on its way any more.
        weight: Of the model, where models have weights that add up: who comes takes half of its donor's.
    """

    def __init__(
        self, node: Node, replica: Replica, take_in: Callable[[], None], weight: Memory[float] | None = None
    ) -> None:
        super().__init__(node, replica, weight)
        self.take_in = take_in
        self.turn = 0  # the round of this worker's batch
        self.through: set[int] = set()  # who has done all of its batches of this list
        self.answers: list[tuple[Address, Message]] = []  # that are due for what was taken in
        self._finish: Callable[[], None] | None = None  # ends the round that this worker has begun
        self._graph: tuple[int, Graph] | None = None  # of which version

    # -- batches ---------------------------------------------------------------------------------------------------

    async def lease(self) -> Lease | None:
        """This worker's next batch, after a meeting where somebody went or came; None: there is none."""
        await self.look()
        await self._answer()
        while word := self.node.receive_nowait(Parting):
            self.through.add(word.sender.rank)
        if self.over:
            return None
        rank = self.node.rank
        self.turn = self.counts[rank] - self.start[rank]
        self.deal(self.turn + 1)
        self.settle()
        return self.ledger.held[rank].get(self.counts[rank])

    def active(self) -> list[int]:
        """Who has a batch in this worker's round, where all take their rounds together."""
        return [rank for rank in self.members if self.turns[rank] > self.turn]

    def due(self, rank: int, late: int) -> int:
        """The last step of another worker that may not be missing, where they may come this many rounds late."""
        turn = min(self.turn - late, self.turns[rank] - 1)
        return self.node.step - self.turn + turn if turn >= 0 else -1

    async def gradient(self, lease: Lease) -> Vector:
        """The mean gradient on this batch."""
        grad = await leased_gradient(self.node, self.replica, lease)
        self.replica.progress.begin(self.replica.batch.samples * len(self.members))
        return grad

    def among(self, graph: Graph) -> Graph:
        """The graph of those that are there."""
        if self._graph is None or self._graph[0] != self.version:
            self._graph = self.version, graph.among(self.members)
        return self._graph[1]

    async def conclude(self, gather: Callable[[], Awaitable[None]], finish: Callable[[], None]) -> None:
        """Wait for what the others send in this round, and end it; with what has come where somebody goes or comes.

        Two that have begun a round then have each other's part of it; so they mix, or both do not.
        """
        self._finish = finish
        try:
            await gather()
            self._end_round()
        except ViewChanged:
            await self.meet()

    def _end_round(self) -> None:
        finish, self._finish = self._finish, None
        if finish is not None:
            finish()

    @property
    def begun(self) -> bool:
        """Whether this worker is in a round."""
        return self._finish is not None

    # -- the beginning and the end -----------------------------------------------------------------------------------

    async def begin_here(self) -> bool:
        """Take part from the beginning, or with the model of another worker; False: all of them have ended."""
        if not self.node.incarnation.enters:
            return True
        self.replica.weigh(0.0)
        self._news()
        if not self.peers:
            if not self.node.incarnation.ended:
                raise all_lost(self.node.address)
            await self.node.note("lost at the end")
            return False
        await self.meet()
        if self.version < 0:
            await self.node.note("lost at the end")
            return True
        await self.node.note("resumed", self.ledger.done[self.node.rank])
        self.replica.progress.reach(sum(self.ledger.done))
        return True

    async def part_from_all(self) -> bool:
        """No batch is left for this worker: end, together with all others; False: somebody went or came."""
        try:
            if not self.over:
                await self._part_twice()
        except ViewChanged:
            await self.meet()
            return False
        if self._news():
            await self.meet()
            return False
        self.take_in()
        ended = tuple(sorted({*self.ended, self.node.rank}))  # who still waits for others need not wait for this one
        await self.node.broadcast(self.peers, RoundStanding(self.seats.marks, self.version, False, ended))
        return True

    async def _part_twice(self) -> None:
        """Messages of a link stay in order: after the first word of all nothing is asked, after the second answered."""
        await self.node.broadcast(self.peers, Parting(2 * self.version))
        for who in self.peers:
            if who.rank not in self.through:
                await self.node.receive(Parting, sender=who, step=2 * self.version)
        self.take_in()
        await self._answer()
        await self.node.broadcast(self.peers, Parting(2 * self.version + 1))
        for who in self.peers:
            await self.node.receive(Parting, sender=who, step=2 * self.version + 1)

    async def _answer(self) -> None:
        while self.answers:
            to, answer = self.answers.pop(0)
            await self.node.send(to, answer)

    def _forget(self) -> None:
        """Take in all that has come, and drop what is of a meeting that was broken off."""
        if self.version >= 0:  # else it is for an earlier incarnation
            self.take_in()
            self._end_round()
        while given := self.node.receive_nowait(PeerState):
            self._take(unpacked(given.state, given.sender))
        self.through.clear()
        super()._forget()
