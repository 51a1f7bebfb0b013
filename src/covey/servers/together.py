"""Rounds in which all workers take part: where one is lost, the others break the round off, and all go on together.

A round ends for nobody before all have given to it, so workers are at most one round apart. When one is restarted, all
meet: each tells how far it is, and drops what it has of the broken round. The furthest wins: whoever is behind takes
over what the others have in common, and the next round is the first that nobody has done.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Protocol

from covey.exchange.collectives.sums import Group
from covey.membership import Departed, Joined, ViewChanged, all_lost
from covey.message import KINDS, Address
from covey.model.differentiation import Differentiation
from covey.model.replica import Replica
from covey.program import Node
from covey.servers.loop_place import LoopPlace
from covey.servers.packed_state import packed, unpacked
from covey.servers.round_messages import LASTING, Parting, PeerReady, PeerState, RoundClosed, RoundStanding, SeatMarks
from covey.servers.standing import remembered, skip_to
from covey.vector import Vector

Undo = Callable[[], object]
"""Brings numbers back as they were before a round."""


class CommonState(Protocol):
    """What the workers have in common after a round, and one that is behind takes over."""

    counts: bool  # the samples that all have seen are a part of it
    alike: bool  # and all of what a worker shows: the model of any of them is that of the run

    @property
    def lends(self) -> bool:
        """Whether what it gives stays as it is while a gradient is computed, and is copied by whoever takes it."""
        ...

    def give(self) -> dict[str, Any]: ...
    def take(self, state: dict[str, Any], restarted: bool) -> None: ...

    def settle(self) -> None:
        """A round of this worker is done, but for what follows from it; or the first one is about to begin."""


class Together:
    """One worker among those of its run. Where lost workers are not restarted, nothing of this costs anything."""

    def __init__(self, node: Node, state: CommonState) -> None:
        self.node, self.state = node, state
        self.elastic = node.incarnation.elastic
        self._done = remembered(node, "done", -1 if node.incarnation.number else node.step + 1)
        self.group: Group = ()  # of the last round
        self.seats = SeatMarks(node)
        self.ended = {who.rank for who in node.incarnation.ended}
        self.open = False  # a round was done since all were last known to be equally far
        self.place = LoopPlace(node, each_step=state.counts)
        self._touched: list[Undo] = []  # of what a broken round may have changed
        self._copies: list[Vector] = []  # of what the last round might change
        if self.elastic:
            state.settle()
        self._peers: tuple[tuple[object, int], tuple[Address, ...]] = ((), 0), ()  # for which marks and ends

    @property
    def done(self) -> int:
        """How many steps are done up to the last round; -1: it does not know."""
        return self._done.value

    @property
    def dealt(self) -> bool:
        """Whether the batches of the next round are dealt out."""
        return False

    @property
    def peers(self) -> tuple[Address, ...]:
        """The workers besides this one that are there, and have not ended; the same object until that changes."""
        (marks, ended), peers = self._peers
        if marks is not self.seats.marks or ended != len(self.ended):
            away = {self.node.rank, *self.ended, *self.seats.empty}
            peers = tuple(Address("worker", rank) for rank in range(self.node.workers) if rank not in away)
            self._peers = (self.seats.marks, len(self.ended)), peers
        return peers

    async def enter(self, replica: Replica) -> bool:
        """Begin; or, in the place of a lost worker, with what the others have in common. False: all have ended."""
        self.place.begin(replica.batch_source.shared)
        if not self.node.incarnation.enters:
            return True
        if not self.peers:
            replica.weigh(0.0)  # nothing of it is scored
            return False
        await self.meet()
        samples = await skip_to(self.node, replica.batch_source.samples, self.done, self.place.loop)
        if not self.state.counts:
            replica.progress.reach(samples * self.node.workers)
        return True

    async def round(
        self, step: int, group: Group, act: Callable[[], Awaitable[object]], *touched: Vector,
        compute: Differentiation | None = None,
    ) -> bool:  # fmt: skip
        """Do the round after a step, which changes these vectors, and the gradient that was computed last.

        False: it was done, and its outcome is taken over.
        After this, and before anything else is awaited from a peer, the caller does what follows from the round.
        """
        if not self.elastic:
            await act()
            return True
        before, self.group, self.place.inside = self._undos(touched, compute), group, True
        while True:
            try:
                await act()
                self.state.settle()
                self._done.value, self.open = step + 1, True
                self.place.mark()
                return True
            except ViewChanged:
                self._touched = before
                if await self.meet():
                    self.place.mark()
                    return False

    def _undos(self, touched: Sequence[Vector], compute: Differentiation | None) -> list[Undo]:
        """What brings these vectors back as they are now, and the gradient: from where backward left it, if it can."""
        grad = compute.undo() if compute else None
        vectors = [vector for vector in touched if vector.parts]
        if compute and not grad:
            vectors.append(compute.grad)
        found: list[Undo] = [grad] if grad else []
        return found + [partial(vector.copy_, copy) for vector, copy in (self._copied(vectors) if vectors else ())]

    def _copied(self, touched: Sequence[Vector]) -> list[tuple[Vector, Vector]]:
        """These vectors, each with a copy, in the memory of the last copies: new memory is slow to write."""
        forms = [[(part.shape, part.dtype, part.device) for part in vector.parts] for vector in touched]
        if forms == [[(part.shape, part.dtype, part.device) for part in copy.parts] for copy in self._copies]:
            for copy, vector in zip(self._copies, touched, strict=True):
                copy.copy_(vector)
        else:
            self._copies = [vector.clone() for vector in touched]
        return list(zip(touched, self._copies, strict=True))

    async def look(self) -> None:
        """Between rounds: meet a worker that was restarted at once."""
        if self.elastic and self._news():
            await self.meet()

    async def part(self, step: int) -> None:
        """Before somebody leaves after this step: wait until all have done it, for who has left can help nobody."""
        if self.open and self.node.present(step) != self.node.present(step + 1):
            await self._part(step, self.node.members(step))

    async def leave(self) -> None:
        """Before the end of the program."""
        if self.place.loop and self.node.incarnation.closing:
            return await self._leave_loop()
        if self.open:
            await self._part(self.done - 1, self.group)
        while self.elastic and self._news():
            await self.meet()

    async def _leave_loop(self) -> None:
        """The loop is over: wait for all others' ends, also of one that was lost and comes to the end again."""
        while True:
            if self._news():
                await self.meet()
            if await self._part(self.done - 1, tuple(sorted([self.node.address, *self.peers]))) and not self._news():
                return

    async def _part(self, step: int, group: Group) -> bool:
        """The first of them, whose model may be the one that is scored, hears all, and is the last to leave.

        False: all had to meet instead.
        """
        self.open = False
        first, *others = group
        try:
            if self.node.address != first:
                await self.node.send(first, Parting(step))
                await self.node.receive(Parting, sender=first, step=step)
                return True
            for who in others:
                await self.node.receive(Parting, sender=who, step=step)
            await self.node.broadcast(others, Parting(step))
            return True
        except ViewChanged:
            await self.meet()
            return False

    # -- where all meet ------------------------------------------------------------------------------------------------

    async def meet(self) -> bool:
        """Agree with all others on how far they are together; whether this worker was behind."""
        before = self.done
        while True:
            try:
                self._news()
                await self._catch_up(await self._standings())
                return self.done != before
            except ViewChanged:  # another one was lost meanwhile
                continue

    def _news(self) -> bool:
        """Whether somebody was restarted, has come, or has gone since."""
        found = False
        while news := self.node.receive_nowait(Joined, Departed):
            found = True
            self.seats.hear(news)
        return found

    async def _standings(self) -> dict[int, tuple[int, bool]]:
        """How far each worker is, when all know the same incarnations and hold nothing of the broken round."""
        told: dict[int, RoundStanding] = {}
        closed: dict[int, tuple[int, ...]] = {}
        await self._tell()
        while True:
            incarnations = self.seats.marks
            alike = (
                all(who.rank in told and told[who.rank].incarnations == incarnations for who in self.peers)
                and self.seats.sure
            )
            if alike and closed.get(self.node.rank) != incarnations:
                self._forget()
                closed[self.node.rank] = incarnations
                await self.node.broadcast(self.peers, RoundClosed(incarnations))
            if alike and all(closed.get(who.rank) == incarnations for who in self.peers):
                others = {who.rank: (told[who.rank].done, told[who.rank].dealt) for who in self.peers}
                return {self.node.rank: (self.done, self.dealt), **others}
            word = await self.node.receive_any(Joined, Departed, RoundStanding, RoundClosed)
            if isinstance(word, RoundClosed):
                closed[word.sender.rank] = word.incarnations
            elif isinstance(word, RoundStanding):
                told[word.sender.rank] = word
                self.ended.update(word.ended)
                if self.seats.know(word.incarnations):
                    await self._tell()
            else:
                self.seats.hear(word)
                await self._tell()  # also where its incarnation was known: its predecessor had what was told before

    async def _tell(self) -> None:
        standing = RoundStanding(self.seats.marks, self.done, self.dealt, tuple(sorted(self.ended)))
        await self.node.broadcast(self.peers, standing)

    def _forget(self) -> None:
        """Let go of the broken round: all that the others sent in it has come, for messages of a link stay in order."""
        while self.node.receive_nowait(*{*KINDS.values()} - LASTING):
            pass
        self.node.host.forget_sums()
        for undo in self._touched:  # not before: others may have read these numbers where they lie
            undo()
        self._touched = []

    async def _catch_up(self, standings: dict[int, tuple[int, bool]]) -> None:
        """Bring all to the furthest."""
        node, furthest = self.node, max(done for done, _ in standings.values())
        if furthest < 0:
            raise all_lost(node.address)
        late = [Address("worker", rank) for rank, (done, _) in sorted(standings.items()) if done < furthest]
        donor = Address("worker", min(rank for rank, (done, _) in standings.items() if done == furthest))
        if node.address in late:
            given = await node.receive(PeerState, sender=donor)
            state = unpacked(given.state, donor)
            self.place.take(state, restarted=self.done < 0)
            self.state.take(state, restarted=self.done < 0)
            self._done.value = furthest
            await node.broadcast(self.peers, PeerReady())
        elif node.address == donor and late:
            common = PeerState(packed({**self.state.give(), **self.place.give()}, copied=False))
            for who in late:
                await node.send(who, common, loan=self.state.lends)
        for who in late:
            if who != node.address:
                await node.receive(PeerReady, sender=who)
        self.open = False
