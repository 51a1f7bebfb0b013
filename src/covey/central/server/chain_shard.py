"""A parameter server with copies, in a chain (van Renesse and Schneider 2004).

The first copy leads: it orders gradients and makes the updates. Each update goes down the chain, and so does each
answer; the last copy gives it to the worker. So whatever a worker was answered is in all copies. When one is lost, the
next leads, and a new one becomes the last, with the state of the one before it. What workers did not get an answer for
they send again, and what has been applied is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from covey.central.server.chain_messages import (
    Applied,
    ChainClosed,
    CopyState,
    Enlist,
    GiveParams,
    TellStanding,
    answers,
)
from covey.central.server.leased_shard import any_shard
from covey.central.server.shard import Params, Pull, Push, Shard, ShardPolicy
from covey.membership import Joined, by_seniority
from covey.message import Address, Message
from covey.model.replica import Replica
from covey.model.scored import NOTHING
from covey.program import Node
from covey.servers.packed_state import packed, unpacked
from covey.servers.roles import addresses
from covey.servers.server_program import Hears
from covey.servers.standing import LEFT, AskStanding, ClientStanding
from covey.strategy.roles import copies_of
from covey.vector import Vector


def may_be_copied(keeping: ShardPolicy) -> bool:
    """Whether all that servers hold between two messages goes down a chain.

    No gradient may wait on when its worker was answered, and what a worker was given must not matter later.
    """
    gate, gather = keeping.rule.gate, keeping.rule.gather
    at_once = gather.everyone or not gather.averages
    plain = keeping.correction is None and keeping.ending is None
    return plain and at_once and gate.holds_by in ("nothing", "steps")


def any_server(policy: Callable[..., Shard], node: Node, replica: Replica, **settings: Any) -> Shard:
    """The program of a server: one of several copies, or the only one."""
    if node.incarnation.replicas > 1:
        return CopiedShard(node, replica, **settings)
    return any_shard(policy, node, replica, **settings)


class CopiedShard(Shard):
    """One copy of a server's piece."""

    only_rule = False

    def __init__(
        self, node: Node, replica: Replica, *, keeping: ShardPolicy, clients: Collection[int], count: int
    ) -> None:
        super().__init__(node, replica, keeping=keeping, clients=clients, count=count)
        self.copies = copies_of(node.rank % count, count, node.incarnation.replicas)
        self.incarnations = {**node.incarnation.others, node.address: node.incarnation.number}
        self.here = {who for who in self.copies if not self.incarnations.get(who)}  # those of which a program has begun
        self.whole = not node.incarnation.number  # it holds what the others do
        self.early: dict[tuple[type[Message], int], Message] = {}  # came before it was known that this copy leads
        self.asked: dict[int, AskStanding] = {}
        self.replies: dict[tuple[type[Message], int], GiveParams | TellStanding] = {}  # the last ones
        self.restarted: set[Address] = set()  # the workers that were, since this copy began
        self.closed = False
        self.next = self.successor() if self.whole else None  # to whom all goes on
        self.does: Hears = {Push: self.take, Pull: self.park, AskStanding: self.ask}  # in this order
        self.hears = {
            Pull: self.heard, Push: self.heard, Applied: self.applied, GiveParams: self.passed,
            TellStanding: self.passed, Enlist: self.enlist, CopyState: self.copy, ChainClosed: self.close,
        }  # fmt: skip

    def seated(self, node: Node, count: int) -> list[Address]:
        servers = addresses(count)
        servers[node.rank % count] = node.address
        return servers

    async def serve(self) -> None:
        others = [who for who in self.copies if who != self.node.address]
        if self.node.incarnation.number and any(who in self.node.incarnation.ended for who in others):
            return
        if not self.whole:
            await self.node.broadcast(others, Enlist(self.node.incarnation.number))
        await super().serve()
        await self.node.broadcast(others, ChainClosed())

    # -- who leads -------------------------------------------------------------------------------------------------

    @property
    def order(self) -> list[Address]:
        return by_seniority(self.copies, self.incarnations)

    @property
    def leads(self) -> bool:
        return self.whole and self.order[0] == self.node.address

    def successor(self) -> Address | None:
        """The next in the chain, if it is there: while it is not, this is the last."""
        behind = self.order[self.order.index(self.node.address) + 1 :]
        return behind[0] if behind and behind[0] in self.here else None

    async def rearrange(self) -> None:
        """Somebody was lost, or has come: whoever is next now must have all that is here."""
        before, self.next = self.next, self.successor() if self.whole else None
        if self.next and self.next != before:
            await self.node.send(self.next, CopyState(packed(self.state())))
        if self.leads:
            early, self.early = self.early, {}
            for kind in self.does:
                for message in [early[key] for key in early if key[0] is kind]:
                    await self.heard(message)

    async def tell_standing(self, message: Joined | AskStanding) -> None:
        who = message.sender
        if isinstance(message, AskStanding):
            return await self.heard(message)
        if who in self.copies:
            self.incarnations[who] = message.incarnation
            self.here.discard(who)
            if self.behind(who):  # it was not there to hear that this copy had come
                await self.node.send(who, Enlist(self.node.incarnation.number))
            await self.rearrange()
            for reply in self.replies.values() if self.leads else ():
                if isinstance(reply, TellStanding) or self.board.clocks.get(reply.rank, LEFT) <= reply.step:
                    await self.pass_on(reply)  # what was on its way through the lost one
        elif who.role == "worker":
            self.restarted.add(who)
            self.gone.discard(who)  # it says goodbye once more
            self.forget_requests(who.rank)

    async def enlist(self, word: Enlist) -> None:
        self.here.add(word.sender)
        await self.rearrange()

    async def left(self, who: Address) -> None:
        """Forget what it asked once more after a loss: a former leader's answer came to it, and it is through."""
        self.forget_requests(who.rank)
        await super().left(who)

    async def close(self, word: ChainClosed) -> None:
        self.closed = True

    @property
    def over(self) -> bool:
        return self.closed or super().over

    # -- what only the leader does ---------------------------------------------------------------------------------

    async def heard(self, message: Any) -> None:
        """A worker has said something. It may have heard of a loss before this copy did, which leads from then on."""
        rank = message.sender.rank
        if not self.leads:
            self.early[type(message), rank] = message
        elif rank in self.board.clocks or isinstance(message, AskStanding):
            await self.does[type(message)](message)

    async def park(self, pull: Pull) -> None:
        """Keep a question, unless the gradient before it was lost with a leader: its worker sends both again."""
        if pull.step <= self.board.clocks[pull.sender.rank]:
            self.parked[pull.sender.rank] = pull

    async def ask(self, message: AskStanding) -> None:
        self.asked[message.sender.rank] = message

    def forget_requests(self, rank: int) -> None:
        super().forget_requests(rank)
        self.asked.pop(rank, None)
        for requests in (self.early, self.replies):
            for kind, of in [key for key in requests if key[1] == rank]:
                del requests[kind, of]

    def next_step(self, rank: int) -> int:
        """The first step of a worker of which nothing is in all copies."""
        return min([super().next_step(rank), *(push.step for push in self.waiting if push.sender.rank == rank)])

    async def settle(self) -> None:
        if not self.leads:
            return
        await super().settle()
        for rank, question in list(self.asked.items()):
            if question.incarnation < 0 and any(push.sender.rank == rank for push in self.waiting):
                continue  # it would leave, and could not send this gradient again
            del self.asked[rank]
            step = LEFT if question.sender in self.finished else self.next_step(rank)
            await self.pass_on(TellStanding(rank, question.incarnation, step))

    async def made(self, pushes: Sequence[Push], grad: Vector, scale: float) -> None:
        if self.next:
            ranks, steps = tuple(push.sender.rank for push in pushes), tuple(push.step for push in pushes)
            samples, buffers = sum(push.samples for push in pushes), self.replica.buffers if self.first else NOTHING
            word = Applied(self.board.version + 1, ranks, steps, samples, scale, grad, buffers)
            await self.node.send(self.next, word)

    async def reply(self, pull: Pull, answer: Params, lent: bool = False) -> None:
        await self.pass_on(GiveParams(pull.sender.rank, pull.step, answer.version, answer.clock, int(lent)))

    # -- what goes down the chain ----------------------------------------------------------------------------------

    async def applied(self, word: Applied) -> None:
        """Make the same update; one that came with a state before is not made twice."""
        if word.version <= self.board.version or not self.behind(word.sender):
            return
        assert word.version == self.board.version + 1, "an update is missing"
        if self.next:
            await self.node.send(self.next, word)
        for rank, step in zip(word.ranks, word.steps, strict=True):
            if rank in self.board.clocks:
                self.board.stands(rank, step + 1)
        if word.buffers.parts:
            self.replica.buffers.copy_(word.buffers)
        self.step(word.grad, word.scale, word.samples)

    def behind(self, who: Address) -> bool:
        """Whether this copy comes after that one: what a former leader sends is of no use."""
        return self.order.index(who) < self.order.index(self.node.address)

    async def passed(self, word: GiveParams | TellStanding) -> None:
        if self.behind(word.sender):
            self.early = {key: early for key, early in self.early.items() if not answers(word, early)}
            await self.pass_on(word)

    async def pass_on(self, word: GiveParams | TellStanding) -> None:
        """Let the last copy, which may be this one, give the answer."""
        who = Address("worker", word.rank)
        if self.leads:
            self.replies[type(word), word.rank] = word
        if self.next:
            await self.node.send(self.next, word)
        elif isinstance(word, TellStanding):
            buffers = self.replica.buffers if self.first else NOTHING
            await self.node.send(who, ClientStanding(word.incarnation, word.step, buffers))
        elif word.version < self.board.version and self.before is not None:
            await self.node.send(who, Params(word.step, word.version, self.before, word.clock))
        else:
            answer = Params(word.step, self.board.version, self.params, word.clock)
            await self.node.send(who, answer, loan=bool(word.lent))

    def state(self) -> dict[str, Any]:
        return {
            "replica": self.replica.state(), "version": self.board.version, "before": self.before,
            "clocks": {rank: self.next_step(rank) for rank in self.board.clocks},
            "gone": [who.rank for who in self.gone], "finished": [who.rank for who in self.finished],
        }  # fmt: skip

    async def copy(self, word: CopyState) -> None:
        """Hold what the copy before this one holds."""
        if not self.behind(word.sender):
            return
        state = unpacked(word.state.clone(), word.sender)
        if not self.whole or state["version"] > self.board.version:  # else it is the same, which somebody may read
            self.replica.restore(state["replica"])
            self.before = state["before"]
            for rank in [rank for rank in self.board.clocks if rank not in state["clocks"]]:
                self.board.leave(rank)
            for rank, clock in state["clocks"].items():
                if rank in self.board.clocks:
                    self.board.stands(rank, clock)
            self.board.version = state["version"]
        self.gone |= {Address("worker", rank) for rank in state["gone"]} - self.restarted
        self.finished |= {Address("worker", rank) for rank in state["finished"]}
        if not self.whole:
            self.whole = True
            await self.node.note("resumed", 0)
        elif self.next:
            await self.node.send(self.next, CopyState(packed(self.state())))
        await self.rearrange()
