"""A parameter server whose workers come and go; the first server deals out the batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from covey.central.server.leased import LeasedParams, LeasedPush
from covey.central.server.shard import Params, Pull, Push, Shard
from covey.data.leases import Lease
from covey.model.replica import Replica
from covey.program import Node
from covey.servers.leasing_server import LeasingServer
from covey.synchronization import GatherChoice
from covey.synchronization.arrivals import Arrivals


def any_shard(policy: Callable[..., Shard], node: Node, replica: Replica, **settings: Any) -> Shard:
    """The program of a server: `policy` where the number of workers is fixed, LeasedShard where they come and go."""
    return (LeasedShard if node.incarnation.leased else policy)(node, replica, **settings)


class LeasedShard(LeasingServer, Shard):
    """A server whose workers come and go; each answer of the first one names a batch."""

    def __init__(self, *given: Any, **settings: Any) -> None:
        super().__init__(*given, **settings)
        self.hears |= {LeasedPush: self.take}

    @property
    def taking_part(self) -> dict[int, int]:
        return self.board.clocks

    def enter(self, rank: int, step: int) -> None:
        self.board.enter(rank, step)

    def drop_out(self, rank: int) -> None:
        self.board.leave(rank)

    def entry(self, rank: int) -> int:
        """In rounds of all, a worker enters at the first step of which its seat has sent nothing."""
        if self.keeping.rule.lends:
            return self.board.version + any(push.sender.rank == rank for push in self.waiting)
        return super().entry(rank)

    def current(self, pull: Pull) -> Params:
        plain, rank = super().current(pull), pull.sender.rank
        answer = LeasedParams(*(getattr(plain, name) for name in Params.__struct_fields__ if name != "sender"))
        if not self.first:
            return answer
        lease, answer.done = self.ledger.take(rank, pull.step), self.ledger.before(rank, pull.step)
        if lease:
            answer.seat, answer.number = lease
            self.ledger.settle(rank, pull.step - 1)  # who asks has heard from all servers after its last but one
        return answer

    async def take(self, push: Push) -> None:
        assert isinstance(push, LeasedPush)
        if self.repeats(push):
            return
        self.heard(push.sender.rank, push.step, push.counters)
        new = self.received.add(Lease(push.seat, push.number))
        if not new:  # a worker that is gone had done it, and only some other server lacked it
            push.samples = 0
        await super().take(push)
        if not new and not self.keeping.rule.gather.weighs_samples:
            self.waiting.pop()

    def choose(self) -> GatherChoice | None:
        """In rounds of all workers, update as soon as nobody is left in this round, with what there is.

        A worker that enters may have begun after it, as another server was further. So all servers do every update, if
        only to count it, and `version` is the step that all workers are at.
        """
        board = self.board
        if not self.keeping.rule.lends:
            return self.keeping.rule.gather.among(self.present).choose(Arrivals(self.waiting), board)
        if board.slowest <= board.version if board.clocks else not self.waiting:
            return None
        used = sorted(range(len(self.waiting)), key=lambda place: self.waiting[place].sender.rank)
        return GatherChoice(used, [self.waiting[place].samples for place in used])

    async def update(self, choice: GatherChoice) -> None:
        if any(choice.weights) or not (choice.used or self.keeping.rule.lends):
            return await super().update(choice)
        await self.note_dropped(choice)
        if self.keeping.rule.lends:
            self.before = self.params.clone()
        self.board.version += 1
        self.forget(choice)
