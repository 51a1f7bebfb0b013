"""A-BSP, aggressive BSP: a superstep ends when the first worker has finished; the others push what they have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial

import torch

from covey.errors import PlanError
from covey.exchange.codec import Codec, dense
from covey.exchange.collectives.compressed import scaled
from covey.message import Address, Message
from covey.model.batches import Batch
from covey.model.replica import Replica
from covey.program import Node
from covey.servers.clients import PieceClient
from covey.servers.clipping import clip_part
from covey.servers.pieces import PieceServer
from covey.servers.pulls import Landing
from covey.servers.roles import addresses, workers_and_servers
from covey.servers.server_program import serve
from covey.strategy import GROW, Description, Role, ServerPlan, Strategy, TaskTerms, Taxonomy
from covey.vector import Vector


class EndSuperstep(Message):
    """Somebody has finished this superstep: push what you have."""

    wire_name = "aggressive.cut"

    step: int

    counted = False


class PartialSum(Message):
    """The sum of a worker's gradients over `samples`, for one server; `finished` when nothing was left to do."""

    wire_name = "aggressive.partial_sum"

    step: int
    samples: int
    finished: bool
    grad: Vector
    buffers: Vector


class Superstep(Message):
    """A server's parameters after a superstep."""

    wire_name = "aggressive.superstep"

    step: int
    params: Vector
    whole: int = 1  # else they are what has changed, encoded


class Pushed(PieceClient):
    """What travels between a worker and its servers: sums up, parameters down."""

    def __init__(self, node: Node, replica: Replica, count: int, codec: Codec) -> None:
        super().__init__(node, replica, addresses(count), codec)
        self.coders = [scaled(codec, coder, usual(replica, node.rank)) for coder in self.coders]
        self.back = Landing(node, self.forms, codec)

    def part(self, index: int, total: Vector) -> Vector:
        """A server's part of a sum."""
        return self.encode(index, total.cut(self.pieces[index]))

    async def collect(self, step: int) -> None:
        for index, server in enumerate(self.servers):
            await self.back.receive(Superstep, index, self.place(index), server, step)


def usual(replica: Replica, rank: int) -> int:
    """The samples of a worker's first batch: a codec sees what a full batch makes as large as a gradient."""
    return max(1, replica.batch_source.samples(rank, 0))


async def worker(node: Node, replica: Replica, *, count: int, chunks: int, codec: Codec) -> None:
    """Go on through one's own data, chunk by chunk; a superstep is a batch's worth of chunks, or fewer when cut."""
    store = Pushed(node, replica, count, codec)
    position = node.remember("position", [0])  # in chunks, over the run: what a cut leaves over comes first next time
    total = replica.grad.map(torch.zeros_like)
    for step in node.steps():
        total.zero_()
        begun, samples, losses = position.value[0], 0, 0.0
        while position.value[0] < begun + chunks and not (position.value[0] > begun and is_cut(node, step)):
            batch, part = divmod(position.value[0], chunks)
            grad = await replica.gradient_of(node, node.rank, batch, part, chunks)
            if replica.batch.samples:
                total.add_(grad, alpha=replica.batch.samples)
                samples, losses = samples + replica.batch.samples, losses + replica.batch.loss * replica.batch.samples
            position.value[0] += 1
        await replica.report(node, Batch(losses / samples if samples else float("nan"), samples))
        finished = position.value[0] == begun + chunks
        for index, server in enumerate(store.servers):
            part_sum = PartialSum(step, samples, finished, store.part(index, total), store.buffers(index))
            await node.send(server, part_sum, loan=True)
        await store.collect(step)
    await store.leave()


def is_cut(node: Node, step: int) -> bool:
    """Whether this superstep is over; cuts of earlier ones came too late."""
    while word := node.receive_nowait(EndSuperstep):
        if word.step == step:
            return True
    return False


class Gatherer(PieceServer):
    """A server's work: the first who finishes ends the superstep for all; one update from everybody's sum."""

    def __init__(self, node: Node, replica: Replica, *, count: int, codec: Codec) -> None:
        super().__init__(node, replica, addresses(count), codec, together=True)
        self.coders = [scaled(codec, self.coder, usual(replica, rank)) for rank in range(node.workers)]
        self.sums = dict[int, PartialSum]()
        self.hears = {PartialSum: self.take}

    async def take(self, part: PartialSum) -> None:
        present = self.node.present(part.step)
        over = any(other.finished for other in self.sums.values())
        self.sums[part.sender.rank] = part
        if self.first and part.finished and not over:
            await self.tell([rank for rank in present if rank not in self.sums], EndSuperstep(part.step))
        if len(self.sums) == len(present):
            await self.update(part.step, [self.sums.pop(rank) for rank in present])
            await self.tell(present, Superstep(part.step, *self.give(0, part.step)))

    def total(self, part: PartialSum) -> Vector:
        """The sum of a worker's gradients, as numbers."""
        return self.coders[part.sender.rank].decode(part.grad)

    async def update(self, step: int, sums: list[PartialSum]) -> None:
        """Sample-weighted: the sum of all gradients over the number of all samples, not a mean of means."""
        samples = sum(part.samples for part in sums)
        await self.note_update(0 for _ in sums)
        self.replace_buffers([part.buffers for part in sums])
        grad = self.total(sums[0]).clone()
        for part in sums[1:]:
            grad.add_(self.total(part))
        await clip_part(self.node, self.replica, grad.mul_(1 / max(1, samples)), step, self.servers)
        self.replica.apply(grad)
        self.replica.progress.add(samples)

    async def tell(self, ranks: Sequence[int], word: Message) -> None:
        await self.node.broadcast([Address("worker", rank) for rank in ranks], word)


@dataclass(frozen=True, kw_only=True, slots=True)
class ABsp:
    """Aggressive BSP: a superstep ends with the first worker; slower ones push what they have and go on there."""

    chunks: int = 4  # of a batch: how soon a cut is noticed

    def strategy(self, workers: int, codec: Codec = dense) -> Strategy:
        if self.chunks < 1:
            raise PlanError(f"a_bsp(chunks={self.chunks}): a batch has 1 chunk or more")

        def roles(workers: int, servers: int) -> list[Role]:
            work = partial(worker, count=servers, chunks=self.chunks, codec=codec)
            return workers_and_servers(workers, work, servers, partial(serve, Gatherer, codec=codec))

        return Strategy(
            name="a_bsp", settings=asdict(self), roles=roles, servers=ServerPlan(1),
            description=Description(
                scored="the servers' parameters", rate="unchanged: the mean over the samples that were processed",
                scaling=GROW,
                samples="slow workers see fewer samples: each goes through its own in order, and skips none",
            ),
            terms=TaskTerms(clips="each update", parts=self.chunks, chooses=True),
            taxonomy=Taxonomy(
                optimization="central", architecture="server", scheduling="synchronous", exchange="reduce / broadcast",
                topology="parameter servers",
            ),
        )  # fmt: skip
