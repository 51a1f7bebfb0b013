"""Speculative synchronization: a worker restarts its batch if many others push soon after its fetch.

Work cannot be broken off inside a backward, so a batch is computed in `parts`, and a worker listens between two.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial

import torch

from covey.central.server.downpour import DownpourShard, ShardStep
from covey.central.server.store import Accrued, FetchParameters, Store
from covey.errors import PlanError
from covey.exchange.codec import Codec, dense
from covey.message import Address, Message
from covey.model.batches import Batch
from covey.model.replica import Replica
from covey.program import Node
from covey.servers.roles import workers_and_servers
from covey.servers.server_program import serve
from covey.strategy import Description, Role, ServerPlan, Strategy, TaskTerms, Taxonomy


class Resync(Message):
    """Enough others have pushed since you fetched for this step: fetch again."""

    wire_name = "speculative.resync"

    step: int

    counted = False


async def worker(node: Node, replica: Replica, *, count: int, parts: int, codec: Codec) -> None:
    """Fetch, differentiate part by part, push; told to in between (which is once at most), abort and redo the batch."""
    store = Store(node, replica, count, codec)
    grad = replica.grad.map(torch.zeros_like)
    for step in node.steps():
        await store.fetch()
        part, losses = 0, 0.0
        grad.zero_()
        while part < parts:
            if resynced(node, step):
                await store.fetch()
                await node.note("aborted")
                part, losses = 0, 0.0
                grad.zero_()
            grad.add_(await replica.gradient_of(node, node.rank, step, part, parts), alpha=replica.batch.samples)
            losses += replica.batch.loss * replica.batch.samples if replica.batch.samples else 0.0
            part += 1
        samples = replica.batch_source.samples(node.rank, step)
        await replica.report(node, Batch(losses / samples, samples))
        await store.push(replica.updates.clip_(grad.mul_(1 / samples)), samples)
    await store.leave()


def resynced(node: Node, step: int) -> bool:
    """Whether a resync of this very step has come; older ones came too late."""
    while word := node.receive_nowait(Resync):
        if word.step == step:
            return True
    return False


class Scheduler(DownpourShard):
    """A shard that counts, for each worker, the pushes of others since its fetch; the first shard tells."""

    def __init__(self, node: Node, replica: Replica, *, count: int, after: Abort, codec: Codec) -> None:
        super().__init__(node, replica, count=count, step=ShardStep(after.share), codec=codec)
        self.after = after
        self.fetched: dict[int, tuple[int, float]] = {}  # by worker: for which step, when
        self.pushes: dict[int, int] = {}
        self.told: dict[int, int] = {}  # the last step that was told to abort

    async def answered(self, fetch: FetchParameters) -> None:
        rank = fetch.sender.rank
        if self.first and self.told.get(rank) != fetch.step:
            self.fetched[rank], self.pushes[rank] = (fetch.step, await self.node.now()), 0

    async def take(self, push: Accrued) -> None:
        await super().take(push)
        self.fetched.pop(push.sender.rank, None)
        now = await self.node.now()
        for rank, (step, since) in list(self.fetched.items()):
            self.pushes[rank] += now - since <= self.after.time
            if self.pushes[rank] >= self.after.rate * self.node.workers:
                del self.fetched[rank]
                self.told[rank] = step
                await self.node.send(Address("worker", rank), Resync(step))


@dataclass(frozen=True, slots=True)
class Abort:
    """When to start anew: this many pushes per worker within this many seconds; and what a push counts."""

    time: float
    rate: float
    share: float


@dataclass(frozen=True, kw_only=True, slots=True)
class SpecSync:
    """Asynchronous, but a batch is redone on fresher weights, once, when many pushes follow its fetch."""

    abort_time: float = 0.005  # seconds after the fetch in which pushes of others count
    abort_rate: float = 0.5  # how many of them, per worker, abort
    parts: int = 4  # of a batch: an abort is noticed between two

    def strategy(self, workers: int, codec: Codec = dense) -> Strategy:
        if self.abort_time < 0 or self.abort_rate <= 0 or self.parts < 1:
            raise PlanError("specsync: abort_time must be 0 or more, abort_rate more than 0, parts 1 or more")
        after = Abort(self.abort_time, self.abort_rate, 1 / workers)

        def roles(workers: int, servers: int) -> list[Role]:
            work = partial(worker, count=servers, parts=self.parts, codec=codec)
            return workers_and_servers(workers, work, servers, partial(serve, Scheduler, after=after, codec=codec))

        return Strategy(
            name="specsync", settings=asdict(self), roles=roles, servers=ServerPlan(1),
            description=Description(
                scored="the servers' parameters", rate="each push counts 1/workers",
                samples="aborted batches are redone: every sample counts once per epoch",
            ),
            terms=TaskTerms(parts=self.parts, chooses=True),
            taxonomy=Taxonomy(
                optimization="central", architecture="server", scheduling="asynchronous", exchange="ad hoc",
                topology="parameter servers",
            ),
        )  # fmt: skip
