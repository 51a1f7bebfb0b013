"""A parameter server whose workers come and go; the first server deals out the batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from typing import Any

from covey.central.server.leased import AskEntry, BatchesLeft, EntryStep, LeasedParams, LeasedPush, OutOfBatches
from covey.central.server.shard import Arrivals, Params, Pull, Push, Shard, ShardPolicy
from covey.data.leases import BatchSet, Lease, Ledger
from covey.membership import Joined
from covey.message import Address
from covey.model.replica import Replica
from covey.model.scored import NOTHING
from covey.observe.tally import AcceptedSamples
from covey.program import Node
from covey.servers.standing import AskStanding
from covey.synchronization import GatherChoice


def any_shard(policy: Callable[..., Shard], node: Node, replica: Replica, **settings: Any) -> Shard:
    """The program of a server: `policy` where the number of workers is fixed, LeasedShard where they come and go."""
    return (LeasedShard if node.life.leased else policy)(node, replica, **settings)


class LeasedShard(Shard):
    """A server whose workers come and go; the first one keeps the ledger of batches."""

    def __init__(
        self, node: Node, replica: Replica, *, keeping: ShardPolicy, clients: Collection[int], count: int
    ) -> None:
        super().__init__(node, replica, keeping=keeping, clients=clients, count=count)
        source, limits = replica.batch_source, [limit or 0 for limit in node.limits]
        self.ledger = Ledger(limits, [source.steps(seat) for seat in range(node.workers)], source.samples)
        self.received = BatchSet(node.workers)
        self.unheard: set[int] = set()  # no gradient of these has come since they entered
        self.entries: Counter[int] = Counter()
        self.idle: set[int] = set()  # there was no batch for these
        self.called: set[int] = set()  # of those, the ones that will ask to enter
        self.furthest = 0
        self.hears |= {LeasedPush: self.take, OutOfBatches: self.rest, AskEntry: self.admit}

    @property
    def team(self) -> int:
        return max(1, len(self.board.clocks))

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
        rank = push.sender.rank
        if self.repeats(push):
            return
        self.unheard.discard(rank)
        self.furthest = max(self.furthest, push.step + 1)
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
            present = self.node.workers - len(self.ledger.empty)
            return self.keeping.rule.gather.among(present).choose(Arrivals(self.waiting), board)
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

    # -- who takes part --------------------------------------------------------------------------------------------

    async def tell_standing(self, message: Joined | AskStanding) -> None:
        if isinstance(message, AskStanding):
            return await super().tell_standing(message)
        self.gone.discard(message.sender)
        self.forget_requests(message.sender.rank)
        await self.admit(message)

    async def admit(self, message: Any) -> None:
        """Count a worker from now on, if it is not counted, and tell it the step."""
        who = message.sender
        if who.rank not in self.board.clocks and who not in self.finished:
            self.board.enter(who.rank, self.entry(who.rank))
            self.unheard.add(who.rank)
            self.entries[who.rank] += 1
        self.idle.discard(who.rank)
        self.called.discard(who.rank)
        self.ledger.join(who.rank)
        rank, step = who.rank, self.board.clocks.get(who.rank, 0)
        buffers = self.replica.buffers if self.first else NOTHING
        pushed, over = rank not in self.unheard, who in self.finished
        await self.node.send(who, EntryStep(message.life, step, pushed, self.entries[rank], over, buffers))

    def entry(self, rank: int) -> int:
        """The step at which a worker enters here: in rounds of all, the first of which its seat has sent nothing."""
        if self.keeping.rule.lends:
            return self.board.version + any(push.sender.rank == rank for push in self.waiting)
        return self.board.slowest if self.board.clocks else self.furthest

    async def rest(self, out: OutOfBatches) -> None:
        """A worker has nothing to do: nobody waits for it. All servers have what it sent."""
        rank = out.sender.rank
        self.board.leave(rank)
        self.ledger.settle(rank)
        self.idle.add(rank)

    async def departed(self, who: Address) -> None:
        rank = who.rank
        for ranks in (self.unheard, self.idle, self.called):
            ranks.discard(rank)
        # with other servers nobody knows whether they have had the last gradients
        self.ledger.leave(rank, self.received.__contains__ if len(self.servers) == 1 else lambda lease: False)
        if self.first:
            await self.node.note("accepted", AcceptedSamples(self.ledger.done[rank], who))
        await super().departed(who)

    async def left(self, who: Address) -> None:
        if who.rank in self.board.clocks and who in self.finished:
            self.ledger.closed = True  # it had more to do: the run ends here
        await super().left(who)

    async def settle(self) -> None:
        await super().settle()
        if not self.first or not self.idle:
            return
        more = self.ledger.open
        if more or self.ledger.closed or not (self.board.clocks or self.called):
            for rank in sorted(self.idle):
                await self.node.send(Address("worker", rank), BatchesLeft(not more))
            self.called, self.idle = {*self.idle} if more else set(), set()
