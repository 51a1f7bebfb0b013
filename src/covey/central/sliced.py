"""Every worker owns one slice of the parameters and its optimizer: n workers are n parameter servers.

Gradient slices go to their owners, who step; fresh slices go back. `bigdl` and `caffeonspark` are points of it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from torch.optim import Optimizer

from covey.central.clipping import clip_part
from covey.errors import PlanError
from covey.exchange.codec import Codec, dense, truncated
from covey.message import Address, Message
from covey.optimizers import ELEMENTWISE
from covey.program import Node
from covey.replica import Replica
from covey.strategy import GROW, Role, Strategy, Taxonomy, workers
from covey.vector import Vector, mean_


class GradientSlice(Message):
    """A worker's gradient for a slice, to its owner; float buffers go to the first owner."""

    step: int
    grad: Vector
    buffers: Vector


class FreshSlice(Message):
    """An owner's slice of the parameters after the update of `step`."""

    step: int
    params: Vector


class SliceDone(Message):
    """A worker sends no more gradients; it still owns its slice."""

    counted = False


class Owner:
    """One worker as everybody's server for its own slice, and as a customer of the other owners."""

    def __init__(self, node: Node, replica: Replica, codec: Codec, whole: bool) -> None:
        self.node, self.replica, self.codec = node, replica, codec
        self.peers = workers(node.workers)
        self.pieces = replica.pieces(node.workers)
        if not whole and node.workers > 1:
            check_elementwise(replica.optimizer)
        replica.keep(self.pieces[node.rank], buffers=node.rank == 0)
        self.memories = node.remember([codec.init(replica.flat.cut(piece)) for piece in self.pieces])
        self.done = node.remember([node.rank])  # who sends no more gradients, seen from the end of one's own
        # codecs that remember are made for gradients: weights then travel as they are
        self.back = codec if self.memories.value[0] is None else dense

    async def hand_out(self, step: int, grad: Vector) -> GradientSlice:
        """Send every other owner its slice of the gradient, and give back one's own; lent until fresh slices come."""
        none, memories = Vector(()), self.memories.value
        for rank, peer in enumerate(self.peers):
            if rank != self.node.rank:
                wire, memories[rank] = self.codec.encode(grad.cut(self.pieces[rank]), memories[rank])
                buffers = self.replica.buffers if rank == 0 else none
                await self.node.send(peer, GradientSlice(step, wire, buffers), loan=True)
        return GradientSlice(step, grad.cut(self.pieces[self.node.rank]), self.replica.buffers)

    async def own(self, step: int, slices: dict[int, GradientSlice]) -> None:
        """Step the optimizer on the own slice with the mean over all samples, and give it to all who are there."""
        present, me = self.node.present(step), self.node.rank
        mine = self.replica.flat.cut(self.pieces[me])
        for rank in present:
            if rank not in slices:
                slices[rank] = await self.node.receive(GradientSlice, sender=self.peers[rank], step=step)
        grads = [slices[r].grad if r == me else self.codec.decode(slices[r].grad, mine) for r in present]
        samples = [self.replica.lessons.samples(rank, step) for rank in present]
        grad = mean_(mine.map(lambda part: part.new_empty(part.shape)), grads, samples)  # added in rank order
        await clip_part(self.node, self.replica, grad, step, self.peers)
        self.replica.under_way = sum(samples)
        if me == 0:
            if self.replica.buffers.parts:
                buffers = [slices[rank].buffers for rank in present]
                self.replica.buffers.copy_(mean_(self.replica.buffers.clone(), buffers, [1.0] * len(buffers)))
            await self.node.note("update")
            await self.node.note("staleness", 0)
        self.replica.apply(grad)
        fresh, _ = self.back.encode(mine, None)
        await self.node.broadcast([self.peers[r] for r in present if r != me], FreshSlice(step, fresh))

    async def collect(self, step: int) -> None:
        """Bring the other owners' fresh slices into the replica."""
        for rank, peer in enumerate(self.peers):
            if rank != self.node.rank:
                place = self.replica.flat.cut(self.pieces[rank])
                into = place if self.back is dense else None
                fresh = await self.node.receive(FreshSlice, sender=peer, step=step, into=into)
                if into is None:
                    place.copy_(self.back.decode(fresh.params, place))

    async def serve_the_rest(self) -> None:
        """A slice needs its owner until the last worker has ended."""
        await self.node.broadcast([peer for peer in self.peers if peer != self.node.address], SliceDone())
        while len(self.done.value) < self.node.workers:
            word = await self.node.receive_any(SliceDone, GradientSlice)
            if isinstance(word, GradientSlice):
                await self.own(word.step, {word.sender.rank: word})
            elif word.sender.rank not in self.done.value:
                self.done.value.append(word.sender.rank)


async def worker(node: Node, replica: Replica, *, codec: Codec, whole: bool) -> None:
    """Differentiate, hand the slices to their owners, step the own slice, collect the others."""
    owner = Owner(node, replica, codec, whole)
    for step in node.steps():
        mine = await owner.hand_out(step, await replica.gradient(node, clip=False))
        await owner.own(step, {node.rank: mine})
        await owner.collect(step)
    await owner.serve_the_rest()


def check_elementwise(optimizer: Optimizer) -> None:
    if not getattr(optimizer, "elementwise", type(optimizer) in ELEMENTWISE):
        raise PlanError(
            f"{type(optimizer).__name__} looks at whole parameters, and BigDL's slices cut through them: use an "
            "element-wise optimizer (SGD, Adam, ...), or sliced, which then gives whole parameters to owners"
        )


def slices(name: str, codec: Codec, whole: bool = True) -> Strategy:
    """The family: any codec; optimizers that need whole parameters get whole ones, or are refused."""

    def roles(workers: int, servers: int) -> list[Role]:
        work = partial(worker, codec=codec, whole=whole)
        return [
            Role(Address("worker", rank), work, trains=True, scored=True, one_batch=True) for rank in range(workers)
        ]

    return Strategy(
        name=name, settings={}, roles=roles, scored="each worker's own slice",
        rate="unchanged: the mean over all workers' samples", scaling=GROW, clips="each update",
        taxonomy=Taxonomy(
            optimization="central", architecture="peers", scheduling="synchronous", exchange="scatter-reduce",
            topology="distributed PS, k = n",
        ),
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Sliced:
    """Every worker owns 1/n of the parameters and of the optimizer: scatter-reduce, step the slice, all-gather."""

    def strategy(self, workers: int, codec: Codec = dense) -> Strategy:
        return replace(slices("sliced", codec), codec=codec.name)


@dataclass(frozen=True, kw_only=True, slots=True)
class BigDl:
    """BigDL: sliced, with gradients and weights cut to the upper 16 bits on the wire; element-wise optimizers only."""

    def strategy(self, workers: int) -> Strategy:
        accept = check_elementwise if workers > 1 else None
        return replace(slices("bigdl", truncated(), whole=False), accept=accept)


@dataclass(frozen=True, kw_only=True, slots=True)
class CaffeOnSpark:
    """CaffeOnSpark: sliced, in full numbers, between peers of equal rank."""

    def strategy(self, workers: int) -> Strategy:
        return slices("caffeonspark", dense)
