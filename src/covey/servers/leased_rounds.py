"""Rounds of workers that come and go: all keep the same list of batches, and deal them out at the start of a round.

Nobody asks anybody for a batch: who is there, which round is next, and what is left are known to all alike, so each
works out what everybody does. A batch is settled when its round is done. Where somebody goes or comes, all meet, and
take over the list of one that is furthest; what those who are gone had goes back to it. Who comes takes part from the
next round on. Who has no batch in a round takes no part in its sum, and is given the outcome.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from covey.data.leases import Lease, Ledger
from covey.exchange.collectives.sums import Group
from covey.membership import ViewChanged, all_lost
from covey.message import Address, Message
from covey.model.differentiation import Differentiation
from covey.model.replica import Replica
from covey.observe.tally import AcceptedSamples
from covey.program import Node
from covey.servers.packed_state import packed, unpacked
from covey.servers.round_messages import PeerReady, PeerState, RoundStanding
from covey.servers.together import CommonState, Together
from covey.vector import Vector

FADE = 2.0**-60  # of a worker's weight to that of the one before it, where the first one that is there is shown
FAINTEST = 16  # times that, which is about the smallest number there is

GroupAct = Callable[[Group], Awaitable[object]]
"""What some workers do together."""


def one_step(first: int) -> int:
    """The length of rounds that are steps."""
    return 1


class RoundOutcome(Message):
    """What all have in common after the round that ends before this step, to one that had no batch in it."""

    wire_name = "together.outcome"

    step: int
    state: Vector

    counted = kept = False


class LeasedRounds(Together):
    """One worker among those of its run that are there."""

    def __init__(self, node: Node, replica: Replica, state: CommonState) -> None:
        super().__init__(node, state)
        source, seats = replica.batch_source, range(node.workers)
        limits = [limit or 0 for limit in node.limits]
        self.replica = replica
        self.ledger = Ledger(limits, [source.steps(seat) for seat in seats], source.samples)
        self.end = self.done  # of the round that is dealt out, if one is
        self._reading: list[Address] = []  # who still reads what it was lent
        self._all: tuple[tuple[Address, ...], list[int], Group] = (), [], ()  # for which peers

    # -- a round ---------------------------------------------------------------------------------------------------

    @property
    def dealt(self) -> bool:
        return self.end > self.done

    @property
    def members(self) -> list[int]:
        """The workers that are there."""
        return self._everybody()[1]

    def _everybody(self) -> tuple[tuple[Address, ...], list[int], Group]:
        """The peers, the numbers of all, and their addresses: put together when somebody goes or comes."""
        if self._all[0] is not (peers := self.peers) or not self._all[1]:
            group = tuple(sorted([self.node.address, *peers]))
            self._all = peers, [who.rank for who in group], group
        return self._all

    @property
    def active(self) -> Group:
        """Those of them that have a batch in this round."""
        held = self.ledger.held
        return tuple([who for who in self._everybody()[2] if held[who.rank]])

    @property
    def samples(self) -> int:
        """Of all of them together, in this round."""
        return sum(self.ledger.size(*lease) for held in self.ledger.held for lease in held.values())

    @property
    def settled(self) -> int:
        """The samples of all rounds before this one."""
        return sum(self.ledger.done) - self.samples

    def begin(self, length: int) -> bool:
        """Deal out the next round, in which everybody does this many batches if there are as many; False: none is left.

        In the order of steps: all get their first batch before anybody gets a second.
        """
        if not self.dealt:
            for step in range(self.done, self.done + length):
                for rank in self.members:
                    self.ledger.take(rank, step)
            self.end = 1 + max((max(held) for held in self.ledger.held if held), default=self.done - 1)
        return self.dealt

    async def next(self, length: Callable[[int], int]) -> bool:
        """The same, with those who have come since the last round; its `length` follows from its first step."""
        await self._greet()
        return self.begin(length(self.done))

    async def _greet(self) -> None:
        if self._news() and await self.meet():
            self._skip()

    def lease(self) -> Lease | None:
        """The batch of this worker's step."""
        return self.ledger.held[self.node.rank].get(self.node.step)

    async def conclude(
        self, act: GroupAct, *touched: Vector, compute: Differentiation | None = None, stopped: bool = False
    ) -> bool:  # fmt: skip
        """End the round by what those do together that had a batch in it, and which changes these vectors, and the
        gradient that was computed last.

        False: there is nothing left to do here, as another worker's outcome is taken over. With `stopped` the steps
        from the present one on are not done. As in `round`, what follows from the sum is done before anything else.
        """
        before, end = self._undos(touched, compute), self.node.step if stopped else self.end
        while True:
            try:
                return await self._concluded(act, end)
            except ViewChanged:
                self._touched = before
                if await self.meet():
                    self._skip()
                    return False

    async def _concluded(self, act: GroupAct, end: int) -> bool:
        self.group = active = self.active
        mine = self.node.address in active
        await self._hear_ready()
        if mine:
            await act(active)
            self.state.settle()
        elif active:
            outcome = await self.node.receive(RoundOutcome, sender=active[0], step=end)
            self.state.take(unpacked(outcome.state, active[0]), restarted=False)
        self._settle(end)
        return mine

    async def hand_out(self) -> None:
        """After a round, and what follows from it: those that had no batch get the outcome."""
        if len(self.group) > len(self.peers):  # which is all of them
            return
        if self.node.address == self.group[0]:
            idle = [who for who in self.peers if who not in self.group]
            await self.node.broadcast(idle, RoundOutcome(self.done, packed(self.state.give())))

    def _settle(self, end: int) -> None:
        self.ledger.end_round(end)
        self._done.value = self.end = end
        self.open = True

    # -- who is there ----------------------------------------------------------------------------------------------

    async def begin_here(self) -> bool:
        """Take part from the beginning, or with what the others have in common; False: all of them have ended."""
        if not self.node.incarnation.enters:
            self._weigh()
            return True
        self.replica.weigh(0.0)
        self._news()
        if not self.peers:
            if not self.node.incarnation.ended:
                raise all_lost(self.node.address)
            return False
        await self.meet()
        self._skip()
        await self.node.note("resumed", self.ledger.before(self.node.rank, self.done))
        if not self.state.counts:
            self.replica.progress.reach(self.settled)
        self._weigh()
        return True

    async def part_from_all(self) -> bool:
        """Nothing is left to deal out: end, together with all others; False: somebody went or came, so look again."""
        try:
            await self._hear_ready()
        except ViewChanged:
            await self._greet()
            return False
        if self.open and not await self._part(self.done - 1, tuple(Address("worker", rank) for rank in self.members)):
            return False
        if self._news():
            await self.meet()
            return False
        ended = tuple(sorted({*self.ended, self.node.rank}))  # who still waits for others need not wait for this one
        await self.node.broadcast(self.peers, RoundStanding(self.seats.marks, self.done, False, ended))
        return True

    def _skip(self) -> None:
        """Count the steps that the others have done."""
        while self.node.step < self.done - 1:
            self.node.training()

    def _weigh(self) -> None:
        """Where all models are the same, the first one is shown, to the bit, and the next one when that one is gone."""
        self.replica.weigh(FADE ** min(self.node.rank, FAINTEST) if self.state.alike else 1.0)

    async def _catch_up(self, standings: dict[int, tuple[int, bool]]) -> None:
        """Bring all to the furthest, and to its list: that of one which has dealt out the next round, if one has."""
        node, furthest = self.node, max(standings.values())
        if furthest[0] < 0:
            raise all_lost(self.seats.last_gone or node.address)
        donor = Address("worker", min(rank for rank, standing in standings.items() if standing == furthest))
        if node.address == donor:
            short = PeerState(packed(self._given()))
            whole = PeerState(packed({**self._given(), "common": self.state.give()}, copied=False))
            for who in self.peers:
                behind = standings[who.rank][0] < furthest[0]
                await node.send(who, whole if behind else short, loan=behind and self.state.lends)
        else:
            given = await node.receive(PeerState, sender=donor)
            self._take(unpacked(given.state, donor), furthest[0])
            await node.broadcast(self.peers, PeerReady())
        self._reading = [who for who in self.peers if who != donor]
        if not self.state.lends:
            await self._hear_ready()
        self._seat()
        self.open = False
        if node.address == donor:
            for rank in sorted(self.ledger.empty):
                await node.note("accepted", AcceptedSamples(self.ledger.done[rank], Address("worker", rank)))

    async def _hear_ready(self) -> None:
        """Before what was lent changes, all have read it."""
        while self._reading:
            await self.node.receive(PeerReady, sender=self._reading[0])
            self._reading.pop(0)

    def _given(self) -> dict[str, Any]:
        return {"list": self.ledger.state(), "end": self.end}

    def _take(self, state: dict[str, Any], done: int) -> None:
        if "common" in state:
            self.state.take(state["common"], restarted=self.done < 0)
            self._done.value = done
        self.ledger.restore(state["list"])
        self.end = state["end"]

    def _seat(self) -> None:
        """Let the list know who is there. Who has come does a batch of the round that is dealt out, if it is a step."""
        empty = self.seats.empty
        for rank in empty - self.ledger.empty:
            self.ledger.leave(rank, known=lambda lease: False)
        for rank in sorted(self.ledger.empty - empty):
            self.ledger.join(rank)
            if self.end == self.done + 1:
                self.ledger.take(rank, self.done)
