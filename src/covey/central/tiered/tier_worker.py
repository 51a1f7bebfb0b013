"""A worker whose machine may vanish: it computes, and may own partitions, of which reliable machines have backups."""

from __future__ import annotations

from covey.central.tiered.tier_messages import (
    PartitionStates,
    RoundParams,
    RoundPush,
    StandDown,
    StopWanted,
    WarnedWorker,
)
from covey.central.tiered.tier_role import States, TierRole, read_states
from covey.central.tiered.tier_stages import TierRule
from covey.data.leases import Lease
from covey.membership import LeaveNotice
from covey.message import Address
from covey.model.replica import Replica
from covey.model.scored import NOTHING
from covey.program import Node
from covey.servers.leased_batches import leased_gradient
from covey.servers.taking_part import NONE_LEFT


async def tiered_worker(node: Node, replica: Replica, *, rule: TierRule) -> None:
    """Receive partitions from their owners, differentiate, push; serve partitions where the controller says so."""
    worker = TierWorker(node, replica, rule)
    if not node.incarnation.closing and not any(server in node.incarnation.ended for server in worker.servers):
        await worker.run()


class TierWorker(TierRole):
    """One worker."""

    def __init__(self, node: Node, replica: Replica, rule: TierRule) -> None:
        super().__init__(node, replica, rule)
        self.arrived: set[Address] = set()  # owners whose partitions of this step are here
        self.computed = self.stopped = False
        self.counted = -1 if node.incarnation.number else 0  # its samples, as whoever watches knows them
        self._installed: States = {}
        self._missing: set[Address] = set()  # servers whose states of what it owns have not come
        self.hears |= {RoundParams: self.land, LeaveNotice: self.warn}

    async def begin_view(self) -> None:
        self._installed = {}
        self._missing = {self.rule.keeper(number) for number in self.owned}
        self.ready = False
        await self._recount(self.round.done)

    async def receive_states(self, word: PartitionStates) -> None:
        """What this worker owns from now on has come from the backups."""
        if word.view > self.round.view:
            self._early.append(word)
        if word.view != self.round.view:
            return
        self._installed |= read_states(word)
        self._missing.discard(word.sender)
        if not self._missing:
            self.replica.progress.restore(next(iter(self._installed.values()))["seen"], self.replica.progress.scores)
            self.replica.updates.keep(self.replica.layout, self.pieces[self.me])
            self.load(self._installed, self.owned)
            self._installed, self.ready = {}, True
            await self.advance()

    async def begin_step(self) -> None:
        self.arrived, self.computed = set(), False
        while self.node.step < self.round.step and not self.stopped:
            self.stopped = not self.node.training()
            if self.stopped:
                await self.tell(self.servers[0], StopWanted())

    async def land(self, params: RoundParams) -> None:
        if self.of_now(params):
            self.replica.flat.cut(self.pieces[params.sender]).copy_(params.params)
            if params.buffers.parts:
                self.replica.buffers.copy_(params.buffers)
            self.arrived.add(params.sender)
            await self.advance()

    async def advance(self) -> None:
        await super().advance()
        whole = self.arrived >= {*self.owners} - {self.me} and (self.ready or not self.owned)
        if whole and not self.computed and self.round.seat != NONE_LEFT:
            self.computed = True
            await self._compute()

    async def _compute(self) -> None:
        word = self.round
        grad = await leased_gradient(self.node, self.replica, Lease(word.seat, word.number))
        self.counted += self.replica.batch.samples
        for owner, piece in self.pieces.items():
            buffers = self.replica.buffers if owner == word.owners[0] else NOTHING
            push = RoundPush(word.view, word.step, self.replica.batch.samples, grad.cut(piece), buffers)
            await self.tell(owner, push)

    async def _recount(self, done: int) -> None:
        """Tell how many samples of this worker count, where it is not all that it has done since the last backup."""
        if self.counted != done:
            self.counted = done
            await self.node.note("resumed", done)

    async def back_up(self, clock: int) -> None:
        for server in self.servers:
            if numbers := [number for number in self.owned if self.rule.keeper(number) == server]:
                await self.node.send(server, PartitionStates(self.round.view, clock, self.states(numbers, self.owned)))

    async def warn(self, notice: LeaveNotice) -> None:
        await self.tell(self.servers[0], WarnedWorker())

    async def stand_down(self, word: StandDown) -> None:
        await super().stand_down(word)
        if word.over:
            await self._recount(word.done)
        else:
            await self.node.compute(lambda: None, 0.0)  # nothing: a machine that was told to goes here
