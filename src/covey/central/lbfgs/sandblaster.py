"""Sandblaster L-BFGS: a coordinator without parameters distributes small portions and commands the shards by scalars.

A portion is one worker's batch of one step; a batch of L-BFGS is many of them. Idle workers get the next portion; when
none is left the slowest outstanding ones are given out once more, and the first result counts (Dean et al. 2012).
"""

from __future__ import annotations

from collections import deque
from dataclasses import asdict, dataclass
from functools import partial

from covey.central.lbfgs.vector_shards import (
    Collect,
    FetchModel,
    Lbfgs,
    Model,
    PortionGradient,
    SearchState,
    VectorShard,
)  # fmt: skip
from covey.errors import PlanError
from covey.message import Address, Message
from covey.model.replica import Replica
from covey.program import Node
from covey.servers.clients import caught_up
from covey.servers.goodbye import Goodbye
from covey.servers.roles import addresses, workers_and_servers
from covey.servers.server_program import ServerProgram, serve
from covey.strategy import Description, Role, ServerPlan, Strategy, TaskTerms, Taxonomy
from covey.vector import Vector

COORDINATOR = Address("coordinator", 0)
Share = tuple[int, int]
"""A portion: whose batch, of which step."""


class Idle(Message):
    """A worker asks for a portion."""

    wire_name = "sandblaster.idle"
    counted = False


class Portion(Message):
    """Compute this; with `rank` -1: the batch has begun, and there is nothing to do yet."""

    wire_name = "sandblaster.portion"

    batch: int
    rank: int
    step: int

    counted = False


class Claim(Message):
    """A portion is computed: does it count?"""

    wire_name = "sandblaster.claim"

    batch: int
    rank: int
    step: int
    loss: float

    counted = False


class Granted(Message):
    wire_name = "sandblaster.granted"

    yes: bool

    counted = False


async def worker(node: Node, replica: Replica, *, count: int) -> None:
    """Ask for a portion, compute it at the batch's weights, push it if it counts."""
    shards, pieces = addresses(count), replica.pieces(count)
    while node.receive_nowait(Portion):
        pass  # of before a restart
    going, loaded, asked = node.training(), -1, False
    while going:
        if not asked:
            await node.send(COORDINATOR, Idle())
        word = await node.receive_any(Portion, Goodbye)
        if not isinstance(word, Portion) or not caught_up(node, word.batch):
            break
        asked = word.rank < 0
        if asked:
            continue
        if word.batch != loaded:  # once per batch
            for piece, shard in zip(pieces, shards, strict=True):
                await node.send(shard, FetchModel(word.batch))
                await node.receive(Model, sender=shard, into=replica.flat.cut(piece))
            loaded = word.batch
        grad = await replica.gradient_of(node, word.rank, word.step)
        claim = Claim(word.batch, word.rank, word.step, replica.batch.loss)
        if (await node.ask(COORDINATOR, claim, Granted)).yes:
            grad.mul_(replica.batch.samples)
            for index, shard in enumerate(shards):
                buffers = replica.buffers if index == 0 else Vector(())
                await node.send(shard, PortionGradient(grad.cut(pieces[index]), buffers))
    await node.broadcast([COORDINATOR, *shards], Goodbye())


class Coordinator(ServerProgram):
    """Deals portions, counts each once, and drives the search; it never sees a vector."""

    def __init__(self, node: Node, replica: Replica, *, count: int, plan: Sandblaster) -> None:
        super().__init__(node, replica)
        self.samples, self.shards = replica.batch_source.samples, addresses(count)
        self.size = plan.batch or max(replica.batch_source.steps(rank) for rank in range(node.workers))
        self.batch = node.remember("batch", [0]).value
        self.lbfgs = Lbfgs(node, self.shards, plan.history, node.remember("search", SearchState()).value)
        self.parked: list[int] = []
        self.portions: list[Share] = []  # of this batch; when there are none, the run is over
        self.fresh: deque[Share] = deque()
        self.out: dict[Share, list[int]] = {}  # not claimed yet, oldest first: who computes it
        self.losses = 0.0
        self.hears = {Idle: self.idle, Claim: self.claim}

    async def serve(self) -> None:
        await self.deal()
        await super().serve()
        await self.node.broadcast(self.shards, Goodbye())

    async def deal(self) -> None:
        """Begin a batch; without portions nobody gets any more."""
        first = self.batch[0] * self.size
        steps = range(first, first + self.size)
        self.portions = [(rank, step) for step in steps for rank in self.node.present(step)]
        self.fresh, self.out, self.losses = deque(self.portions), {}, 0.0
        if self.portions:
            await self.feed()
        else:
            await self.node.broadcast([Address("worker", rank) for rank in self.parked], Goodbye())

    async def settle(self) -> None:
        """When every portion is computed: a step of the search, and the next batch."""
        while self.portions and not self.fresh and not self.out:
            samples = sum(self.samples(*portion) for portion in self.portions)
            await self.node.broadcast(self.shards, Collect(len(self.portions), samples))
            await self.lbfgs.step(self.losses / samples)
            await self.node.note("update")
            self.batch[0] += 1
            await self.deal()

    async def idle(self, idle: Idle) -> None:
        if self.portions:
            await self.give(idle.sender.rank)
        else:
            await self.node.send(idle.sender, Goodbye())

    async def claim(self, claim: Claim) -> None:
        portion = claim.rank, claim.step
        counts = claim.batch == self.batch[0] and portion in self.out
        await self.node.send(claim.sender, Granted(counts))
        if counts:
            del self.out[portion]
            self.losses += await self.count(portion, claim.loss)

    async def count(self, portion: Share, loss: float) -> float:
        samples = self.samples(*portion)
        await self.node.note("samples", samples)
        await self.node.note("loss", loss)
        return loss * samples

    async def give(self, rank: int) -> None:
        """The next portion, or the slowest outstanding one that only one other computes, or a place to wait."""
        slow = [portion for portion, holders in self.out.items() if len(holders) == 1 and rank not in holders]
        portion = self.fresh.popleft() if self.fresh else slow[0] if slow else (-1, -1)
        if portion[0] < 0:
            self.parked.append(rank)
        else:
            self.out.setdefault(portion, []).append(rank)
        await self.node.send(Address("worker", rank), Portion(self.batch[0], *portion))

    async def feed(self) -> None:
        waiting, self.parked = self.parked, []
        for rank in waiting:
            await self.give(rank)

    async def left(self, who: Address) -> None:
        """Who leaves will not finish its portion."""
        self.parked = [other for other in self.parked if other != who.rank]
        for portion, holders in list(self.out.items()):
            if who.rank in holders:
                holders.remove(who.rank)
                if not holders:
                    del self.out[portion]
                    self.fresh.append(portion)
        await self.feed()


@dataclass(frozen=True, kw_only=True, slots=True)
class Sandblaster:
    """Batch L-BFGS on shards, directed by a coordinator; idle workers get portions, the last ones twice."""

    batch: int | None = None  # steps of every worker that make one batch; a pass over the data
    history: int = 10

    def strategy(self, workers: int) -> Strategy:
        if self.history < 1 or (self.batch is not None and self.batch < 1):
            raise PlanError("sandblaster: batch and history must be 1 or more")

        def roles(workers: int, servers: int) -> list[Role]:
            group = workers_and_servers(workers, partial(worker, count=servers), servers, partial(serve, VectorShard))
            return [*group, Role(COORDINATOR, partial(serve, Coordinator, count=servers, plan=self))]

        return Strategy(
            name="sandblaster", settings=asdict(self), roles=roles, servers=ServerPlan(1),
            description=Description(
                scored="the servers' parameters", rate="not used: L-BFGS searches along its direction",
                scaling="it is not used",
                samples="every sample counts once per epoch; the last portions of a batch may be computed twice",
            ),
            terms=TaskTerms(clips="never", chooses=True),
            taxonomy=Taxonomy(
                optimization="central", architecture="server", scheduling="synchronous", exchange="ad hoc",
                topology="parameter servers",
            ),
        )  # fmt: skip
