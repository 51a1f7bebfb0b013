"""A server on a reliable machine: it owns partitions, or keeps the backups of those that transient machines own."""

from __future__ import annotations

from covey.central.sliced.optimizer_parts import union
from covey.central.tiered.tier_controller import TierController
from covey.central.tiered.tier_messages import BackupKept, CommitBackup, PartitionStates, StandDown
from covey.central.tiered.tier_role import States, TierRole, read_states
from covey.central.tiered.tier_stages import TierRule
from covey.errors import PlanError
from covey.membership import Joined
from covey.model.replica import Replica
from covey.program import Node


async def tiered_server(node: Node, replica: Replica, *, rule: TierRule, backup: int) -> None:
    """Serve, or keep backups; the first server is also the controller."""
    server = TierServer(node, replica, rule)
    if node.rank:
        return await server.run()
    controller = TierController(server, backup)
    await controller.begin()
    await server.run()
    while late := node.receive_nowait(Joined):
        await node.send(late.sender, StandDown(True, controller.ledger.done[late.sender.rank]))


class TierServer(TierRole):
    """One server; its own numbers are those of the last backup that all servers have, or newer ones where it owns."""

    def __init__(self, node: Node, replica: Replica, rule: TierRule) -> None:
        super().__init__(node, replica, rule)
        if replica.shown.average:
            raise PlanError("proteus: servers have backups, and not every step of which ema=… is the mean: omit ema")
        self.mine = [number for number in range(rule.partitions) if rule.keeper(number) == self.me]
        replica.keep(union(self.partitions, self.mine), buffers=node.rank == 0)
        self.kept: dict[int, States] = {}  # backups by their clocks, until all servers have theirs
        self.hears |= {CommitBackup: self.commit}

    async def begin_view(self) -> None:
        """Give those that own from now on what is here; backups of an earlier view are of no use."""
        self.kept, self.ready = {}, True
        for owner in self.owners:
            numbers = [number for number in self.mine if self.round.owners[number] == owner]
            if numbers and owner.role == "worker":
                states = self.states(numbers, self.mine)
                await self.node.send(owner, PartitionStates(self.round.view, self.round.step, states))

    async def receive_states(self, word: PartitionStates) -> None:
        """A backup."""
        if word.view == self.round.view:
            found = self.kept.setdefault(word.clock, {})
            found |= read_states(word)
            if len(found) == len(self.mine):
                await self.tell(self.servers[0], BackupKept(word.view, word.clock))

    async def back_up(self, clock: int) -> None:
        """What it owns is safe where it is."""
        if self.owned:
            await self.tell(self.servers[0], BackupKept(self.round.view, clock))

    async def commit(self, word: CommitBackup) -> None:
        if states := self.kept.get(word.clock):
            self.load(states, self.mine)
            self.replica.progress.reach(next(iter(states.values()))["seen"])
        self.kept = {clock: states for clock, states in self.kept.items() if clock > word.clock}
