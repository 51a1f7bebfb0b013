"""Who serves, who computes which batch, and what counts? The first server decides it, as its machine stays.

A batch counts for good when the state that it is in is on reliable machines. When the owner of a partition is lost,
all go back to the last backup: the batches since then are done again, and no others.
"""

from __future__ import annotations

from functools import partial

from covey.central.tiered.tier_messages import (
    ApplyRound,
    BackupKept,
    CommitBackup,
    PushesHeld,
    StandDown,
    StartRound,
    StopWanted,
    WarnedWorker,
)
from covey.central.tiered.tier_role import TierRole
from covey.central.tiered.tier_stages import Tiers
from covey.data.leases import Lease, Ledger
from covey.membership import Departed, Joined
from covey.message import Address
from covey.observe.tally import AcceptedSamples
from covey.servers.taking_part import NOTHING_LEASED


class TierController:
    """The elasticity controller (Harlap et al. 2017), on the first server; `period`: steps between two backups."""

    def __init__(self, server: TierRole, period: int) -> None:
        self.server, self.node, self.rule, self.period = server, server.node, server.rule, period
        source, seats = server.replica.batch_source, range(self.node.workers)
        limits = [limit or 0 for limit in self.node.limits]
        self.ledger = Ledger(limits, [source.steps(seat) for seat in seats], source.samples)
        self.present = dict.fromkeys(seats, 0)  # the workers that are there, and their incarnations
        self.leaving: set[int] = set()  # those of them whose machines depart soon
        self.view, self.clock, self.backed = -1, 0, 0
        self.tiers = self.arranged()
        self.rounds: dict[int, dict[int, Lease]] = {}  # the batches of steps of which there is no backup, by workers
        self.held: dict[Address, set[int]] = {}
        self.kept: dict[int, set[Address]] = {}
        self.waiting = False  # for the backup of this clock, before others serve or the run ends
        self._told: dict[int, int] = {}  # how many samples of absent workers count
        server.hears |= {
            PushesHeld: self.hold, BackupKept: self.keep, WarnedWorker: self.warn, StopWanted: self.stop,
            Departed: self.depart, Joined: self.join,
        }  # fmt: skip

    async def begin(self) -> None:
        await self.begin_view()

    def arranged(self) -> Tiers:
        """What everybody would do from now on."""
        staying = [rank for rank in self.present if rank not in self.leaving]
        serving = self.tiers.owners if self.view >= 0 else ()
        return self.rule.arrange(staying or list(self.present), serving)

    # -- steps -----------------------------------------------------------------------------------------------------

    async def begin_view(self) -> None:
        """Go on from the last backup, with those that are there."""
        for step in [step for step in self.rounds if step >= self.backed]:
            for rank, lease in self.rounds.pop(step).items():
                self.ledger.put_back(rank, lease)
        self.tiers = self.arranged()
        self.view, self.clock, self.kept, self.waiting = self.view + 1, self.backed, {}, False
        await self.node.note(f"stage {self.tiers.stage}")
        await self.begin_round()

    async def begin_round(self) -> None:
        """Deal out the batches of a step."""
        await self.tell_accepted()
        team = {*self.tiers.team}
        for rank in range(self.node.workers):
            if rank in team:
                self.ledger.join(rank)
            else:
                self.ledger.empty.add(rank)
        found: dict[int, Lease] = {}
        for rank in self.tiers.team:
            if lease := self.ledger.take(rank, self.clock):
                found[rank] = lease
                self.ledger.settle(rank)
        if not found:  # the budget was spent while others came to serve
            return await self.end()
        self.rounds[self.clock], self.held = found, {}
        incarnations = tuple(self.present[rank] for rank in found)
        start = partial(StartRound, self.view, self.clock, self.tiers.owners, tuple(found), incarnations)
        for server in self.server.servers:
            await self.server.tell(server, start(*NOTHING_LEASED, 0))
        for rank in self.present:
            lease = found.get(rank, NOTHING_LEASED)
            done = self.ledger.done[rank] - (self.ledger.size(*lease) if rank in found else 0)
            await self.node.send(Address("worker", rank), start(*lease, done))
        for rank in self.leaving & self.present.keys() - team:
            await self.node.send(Address("worker", rank), StandDown(False))

    async def hold(self, word: PushesHeld) -> None:
        """When all owners have what they can get, let them step on what all of them have."""
        if (word.view, word.step) != (self.view, self.clock):
            return
        self.held[word.sender] = {*word.ranks}
        if self.held.keys() < {*self.tiers.owners}:
            return
        found = self.rounds[self.clock]
        used = sorted(set.intersection(*self.held.values()) & found.keys())
        for rank in found.keys() - used:
            self.ledger.put_back(rank, found.pop(rank))
        following = self.arranged()
        self.waiting = following.owners != self.tiers.owners or not self.ledger.left
        backup = self.waiting or self.tiers.stage == 1 or (self.clock + 1) % self.period == 0
        for owner in dict.fromkeys(self.tiers.owners):
            await self.server.tell(owner, ApplyRound(self.view, self.clock, tuple(used), backup))
        if used:
            await self.node.note("update")
            await self.node.note("staleness", 0)
        self.clock += 1
        if not self.waiting:
            self.tiers = following
            await self.begin_round()

    async def keep(self, word: BackupKept) -> None:
        """When all servers have the backup of a clock, nobody goes back behind it."""
        if word.view != self.view:
            return
        have = self.kept.setdefault(word.clock, set())
        have.add(word.sender)
        if len(have) < len(self.server.servers):
            return
        self.backed = word.clock
        self.kept = {clock: servers for clock, servers in self.kept.items() if clock > word.clock}
        self.rounds = {step: leases for step, leases in self.rounds.items() if step >= word.clock}
        for server in self.server.servers:
            await self.server.tell(server, CommitBackup(word.clock))
        if self.waiting and self.backed == self.clock:
            await (self.begin_view() if self.ledger.left else self.end())

    # -- who is there ----------------------------------------------------------------------------------------------

    async def depart(self, news: Departed) -> None:
        rank = news.sender.rank
        self.leaving.discard(rank)
        if self.present.pop(rank, None) is not None and news.sender in self.tiers.owners:
            await self.begin_view()
        await self.server.depart(news)

    async def join(self, news: Joined) -> None:
        """Another incarnation of a worker is there; where the one before it served, all go back to the last backup."""
        rank = news.sender.rank
        self.leaving.discard(rank)
        served = rank in self.present and news.sender in self.tiers.owners
        self.present[rank] = news.incarnation
        self._told.pop(rank, None)
        if served:
            await self.begin_view()
        await self.server.join(news)

    async def warn(self, word: WarnedWorker) -> None:
        """It does nothing more from the next step on, and is free to go when others have what it owns."""
        self.leaving.add(word.sender.rank)

    async def stop(self, word: StopWanted) -> None:
        self.ledger.closed = True

    async def tell_accepted(self) -> None:
        """Tell how many samples count of those that are gone."""
        for rank in range(self.node.workers):
            count = self.ledger.done[rank]
            if rank not in self.present and self._told.get(rank) != count:
                self._told[rank] = count
                await self.node.note("accepted", AcceptedSamples(count, Address("worker", rank)))

    async def end(self) -> None:
        await self.tell_accepted()
        for rank in self.present:
            await self.node.send(Address("worker", rank), StandDown(True, self.ledger.done[rank]))
        for server in self.server.servers:
            await self.server.tell(server, StandDown(True))
