"""Servers hold shards of the parameters and step the optimizer; workers pull, differentiate and push.

`bsp`, `ssp` and `asynchronous` are one family: they differ only in the rule that the servers ask.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Literal

from covey.errors import PlanError
from covey.message import Address, Message
from covey.program import Node
from covey.replica import Replica
from covey.strategy import Role, Scheduling, Strategy, Taxonomy
from covey.synchronization import Barrier, Bounded, Rule, Unbounded
from covey.vector import Vector, mean_


class Pull(Message):
    """A worker asks for the parameters of its step."""

    step: int


class Params(Message):
    """A server's shard of the parameters, after `version` updates."""

    step: int
    version: int
    params: Vector


class Push(Message):
    """A worker's gradient for a shard, taken at the parameters of `version`; its float buffers travel along."""

    step: int
    version: int
    samples: int
    grad: Vector
    buffers: Vector


class Leave(Message):
    """A worker will push no more."""

    counted = False


class Servers:
    """The servers as a worker sees them: each holds one piece of the parameters."""

    def __init__(self, node: Node, replica: Replica, count: int) -> None:
        self.node, self.replica = node, replica
        self.addresses = [Address("server", index) for index in range(count)]
        self.pieces = replica.pieces(count)
        self.versions = [0] * count

    async def pull(self) -> None:
        """Bring the newest parameters that the rule allows into the replica."""
        step = self.node.step
        for server in self.addresses:
            await self.node.send(server, Pull(step))
        for index, server in enumerate(self.addresses):
            mine = self.replica.flat.cut(self.pieces[index])
            params = await self.node.receive(Params, sender=server, step=step, into=mine)
            self.versions[index] = params.version

    async def push(self, grad: Vector) -> None:
        """Give each server its piece of the gradient; it is lent until the next pull is answered."""
        samples, none = self.replica.batch.samples, Vector(())
        for index, server in enumerate(self.addresses):
            buffers = self.replica.buffers if index == 0 else none
            piece = grad.cut(self.pieces[index])
            await self.node.send(server, Push(self.node.step, self.versions[index], samples, piece, buffers), loan=True)

    async def leave(self) -> None:
        await self.node.broadcast(self.addresses, Leave())


async def worker(node: Node, replica: Replica, *, count: int) -> None:
    """Pull, differentiate, push."""
    servers = Servers(node, replica, count)
    while node.training():
        await servers.pull()
        await servers.push(await replica.gradient(node))
    await servers.leave()


@dataclass(slots=True)
class Ledger:
    """What a server remembers: how many gradients each worker still there has pushed, and how many updates it made."""

    clocks: dict[int, int]
    version: int = 0

    @property
    def slowest(self) -> int:
        return min(self.clocks.values())


class Shard:
    """A server's work, message by message: hold pulls back until the rule admits them, apply what is pushed."""

    def __init__(self, node: Node, replica: Replica, rule: Rule, index: int) -> None:
        self.node, self.replica, self.rule = node, replica, rule
        self.first = index == 0  # notes of updates and staleness come from one server only
        self.ledger = node.remember(Ledger(dict.fromkeys(range(node.workers), 0))).value
        self.parked: dict[int, Pull] = {}
        self.round: dict[int, Push] = {}

    async def serve(self) -> None:
        while self.ledger.clocks:
            message = await self.node.receive_any(Pull, Push, Leave)
            rank = message.sender.rank
            if isinstance(message, Pull):
                self.parked[rank] = message
            elif isinstance(message, Push):
                await self.take(rank, message)
            else:
                self.ledger.clocks.pop(rank, None)
            if self.rule.together:
                await self.close_round()
            await self.answer()

    async def take(self, rank: int, push: Push) -> None:
        self.ledger.clocks[rank] += 1
        if self.rule.together:
            self.round[rank] = push
            return
        self.keep_buffers([push], 1 / self.node.workers)
        await self.note_update([push])
        self.replica.apply(push.grad, self.rule.weight(self.node.workers))
        self.advance([push])

    async def close_round(self) -> None:
        """Once everybody still training has pushed: one update with the mean over all samples, added in rank order."""
        if not self.round or self.ledger.clocks.keys() - self.round.keys():
            return
        pushes = [self.round[rank] for rank in sorted(self.round)]
        self.round.clear()
        self.keep_buffers(pushes, 1.0)
        await self.note_update(pushes)
        grad = pushes[0].grad.map(lambda part: part.new_empty(part.shape))
        self.replica.apply(mean_(grad, [push.grad for push in pushes], [push.samples for push in pushes]))
        self.advance(pushes)

    def keep_buffers(self, pushes: Sequence[Push], weight: float) -> None:
        """Move the server's buffers towards the mean of those pushed."""
        if self.first and self.replica.buffers.parts:
            pushed = mean_(self.replica.buffers.clone(), [push.buffers for push in pushes], [1.0] * len(pushes))
            self.replica.buffers.lerp_(pushed, weight)

    async def note_update(self, pushes: Sequence[Push]) -> None:
        if self.first:
            for push in pushes:
                await self.node.note("staleness", self.ledger.version - push.version)
            await self.node.note("update")

    def advance(self, pushes: Sequence[Push]) -> None:
        self.ledger.version += 1
        self.replica.seen += sum(push.samples for push in pushes)

    async def answer(self) -> None:
        """Answer the parked pulls that the rule admits now, in rank order."""
        for rank in sorted(self.parked):
            clock = self.ledger.clocks.get(rank, 0)
            if not self.rule.admits(clock, self.ledger.slowest):
                continue
            step = self.parked.pop(rank).step
            await self.node.note("lead", clock - self.ledger.slowest)
            params = self.replica.flat.cut(self.replica.trained)
            # between two rounds nobody writes the parameters, so a barrier may lend them
            answer = Params(step, self.ledger.version, params)
            await self.node.send(Address("worker", rank), answer, loan=self.rule.together)


async def server(node: Node, replica: Replica, *, index: int, count: int, rule: Rule) -> None:
    """Hold one piece of the parameters until every worker has left."""
    replica.keep(replica.pieces(count)[index], buffers=index == 0)
    await Shard(node, replica, rule, index).serve()


def parameter_server(name: str, rule: Rule, scheduling: Scheduling, settings: dict[str, object]) -> Strategy:
    """The family: any rule over any number of servers."""

    def roles(workers: int, servers: int) -> list[Role]:
        work, serve = partial(worker, count=servers), partial(partial, server, count=servers, rule=rule)
        return [
            *(Role(Address("worker", rank), work, trains=True) for rank in range(workers)),
            *(Role(Address("server", index), serve(index=index), scored=True) for index in range(servers)),
        ]

    exchange: Literal["reduce / broadcast", "ad hoc"] = "reduce / broadcast" if rule.together else "ad hoc"
    taxonomy = Taxonomy(
        optimization="central",
        architecture="server",
        scheduling=scheduling,
        exchange=exchange,
        topology="parameter servers",
    )
    return Strategy(
        name=name, taxonomy=taxonomy, settings=settings, roles=roles, servers=1,
        scored="the servers' parameters", rate="unchanged: the mean over all workers' samples" if rule.together
        else "each push counts 1/workers",
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Bsp:
    """Bulk synchronous: every step waits for every worker, one update with the mean gradient."""

    def strategy(self, workers: int) -> Strategy:
        return parameter_server("bsp", Barrier(), "synchronous", asdict(self))


@dataclass(frozen=True, kw_only=True, slots=True)
class Ssp:
    """Stale synchronous: a worker may read while it is at most `bound` steps ahead of the slowest."""

    bound: int = 3
    weight: float | None = None  # what a push counts; 1 / workers

    def strategy(self, workers: int) -> Strategy:
        if self.bound < 0:
            raise PlanError(f"ssp(bound={self.bound}): the bound is a number of steps, 0 or more (0 waits as bsp does)")
        weight = _weight("ssp", self.weight, workers)
        return parameter_server("ssp", Bounded(self.bound, weight), "bounded", {"bound": self.bound, "weight": weight})


@dataclass(frozen=True, kw_only=True, slots=True)
class Asynchronous:
    """Asynchronous: nobody waits; each gradient is applied when it comes, however old."""

    weight: float | None = None  # what a push counts; 1 / workers

    def strategy(self, workers: int) -> Strategy:
        weight = _weight("asynchronous", self.weight, workers)
        return parameter_server("asynchronous", Unbounded(weight), "asynchronous", {"weight": weight})


def _weight(name: str, weight: float | None, workers: int) -> float:
    if weight is not None and weight <= 0:
        raise PlanError(f"{name}(weight={weight}): a push must count something; leave it away for 1/{workers}")
    return 1 / workers if weight is None else weight
