"""Every worker owns one slice of the parameters and its optimizer: n workers are n parameter servers.

Gradient slices go to their owners, who step; fresh slices go back. `bigdl` and `caffeonspark` are points of it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import partial

from torch.optim import Optimizer

from covey.central.sliced.dropping import Dropping, PartsReady, Patience
from covey.central.sliced.leased_slices import leased_worker
from covey.central.sliced.slice_messages import FreshSlice, GradientSlice
from covey.errors import PlanError
from covey.exchange.codec import Codec, dense, seed
from covey.exchange.codecs.bits import truncated
from covey.message import Address
from covey.model.optimizers import elementwise
from covey.model.replica import Replica
from covey.model.scored import NOTHING
from covey.program import Node
from covey.servers.clients import PieceClient
from covey.servers.clipping import clip_part
from covey.servers.goodbye import Goodbye
from covey.servers.pulls import Landing, own_slice
from covey.strategy import GROW, ONCE, Description, Role, Strategy, TaskTerms, Taxonomy, workers
from covey.vector import mean_


class Owner(PieceClient):
    """One worker as everybody's server for its own slice, and as a customer of the other owners."""

    def __init__(self, node: Node, replica: Replica, codec: Codec, whole: bool, dropping: Dropping | None) -> None:
        self.dropping, self.peers = dropping, workers(node.workers)
        super().__init__(node, replica, self.peers, codec, named=self.peers)
        if not whole and node.workers > 1:
            check_elementwise(replica.optimizer)
        replica.keep(self.pieces[node.rank], buffers=node.rank == 0)
        self.done = node.remember("done", [node.rank])  # who sends no more gradients, seen from the end of one's own
        self.patience = node.remember("patience", Patience()).value
        pairs, back = zip(self.forms, self.peers, strict=True), codec.for_weights()
        whole_coders = [back.made(form, seed(node, peer, "back")) for form, peer in pairs] if back else []
        self.back = Landing(node, self.forms, codec, whole_coders)
        self.slice = own_slice(node, replica, self.pieces[node.rank], codec, whole_coders[node.rank : node.rank + 1])

    async def compute(self) -> PartsReady:
        """The gradient of the next batch, or of what is ready of it in time."""
        if self.dropping:
            return await self.dropping.ready(self.node, self.replica, self.patience.limit)
        grad = await self.replica.gradient(self.node, clip=False)
        return PartsReady(grad, self.replica.batch_source.samples(self.node.rank, self.node.step))

    async def hand_out(self, step: int, ready: PartsReady) -> GradientSlice:
        """Send every other owner its slice of the gradient, and give back one's own; lent until fresh slices come."""
        grad, samples, times = ready
        wire = NOTHING
        for rank, peer in enumerate(self.peers):
            if rank != self.node.rank:
                if samples:
                    wire = self.encode(rank, grad.cut(self.pieces[rank]))
                await self.replica.updates.inform(self.node, peer)
                await self.node.send(peer, GradientSlice(step, samples, times, wire, self.buffers(rank)), loan=True)
        return GradientSlice(step, samples, times, grad.cut(self.pieces[self.node.rank]), self.replica.buffers)

    async def own(self, step: int, slices: dict[int, GradientSlice]) -> None:
        """Step the optimizer on the own slice with the mean over all samples, and give it to all who are there."""
        present, me = self.node.present(step), self.node.rank
        for rank in present:
            if rank not in slices:
                slices[rank] = await self.node.receive(GradientSlice, sender=self.peers[rank], step=step)
        self.replica.progress.begin(sum(self.replica.batch_source.samples(rank, step) for rank in present))
        here = {rank: slices[rank] for rank in present}
        self.slice.back()
        if self.dropping is None or await self.in_time(self.dropping, here):
            await self.update(step, here)
        else:
            self.replica.progress.end()
        fresh = FreshSlice(step, *self.slice.give(step))
        # lent where nothing changes it before all have read it: not even one who ends with this step may be late
        lent = self.slice.lends and self.node.present(step + 1) == present
        for rank in present:
            if rank != me:
                await self.node.send(self.peers[rank], fresh, loan=lent)

    async def in_time(self, dropping: Dropping, slices: dict[int, GradientSlice]) -> bool:
        """Whether enough of the step was ready in time; how many parts count for nothing is told."""
        enough = dropping.enough([one.times for one in slices.values()], self.patience)
        enough = enough and any(one.samples for one in slices.values())
        lost = sum(dropping.parts - len(one.times) if enough else dropping.parts for one in slices.values())
        if self.node.rank == 0 and lost:
            await self.node.note("dropped", lost)
        return enough

    async def update(self, step: int, slices: dict[int, GradientSlice]) -> None:
        """Step with the mean over all samples that are there; what travelled is decoded, one's own did not.

        On one host the others' gradients are read where they lie, and the mean takes the place of one's own.
        """
        self.replica.updates.follow(self.node, [(self.peers[rank], step) for rank in slices])
        me, given = self.node.rank, {rank: one for rank, one in slices.items() if one.samples}
        grads = [one.grad if rank == me else self.coders[me].decode(one.grad) for rank, one in given.items()]
        samples = [one.samples for one in given.values()]
        grad = mean_(self.replica.grad.cut(self.pieces[me]), grads, samples)  # added in rank order
        await clip_part(self.node, self.replica, grad, step, self.peers)
        if me == 0:
            if self.replica.buffers.parts:
                buffers = [one.buffers for one in slices.values()]
                self.replica.buffers.copy_(mean_(self.replica.buffers.clone(), buffers, [1.0] * len(buffers)))
            await self.node.note("update")
            await self.node.note("staleness", 0)
        self.replica.update()

    async def collect(self, step: int) -> None:
        """Bring the other owners' fresh slices into the replica."""
        for rank, peer in enumerate(self.peers):
            if rank != self.node.rank:
                await self.back.receive(FreshSlice, rank, self.place(rank), peer, step)

    async def serve_the_rest(self) -> None:
        """A slice needs its owner until the last worker has ended.

        Not a `ServerProgram`: an owner takes part in its own steps, and remembers who has left meanwhile.
        """
        await self.node.broadcast([peer for peer in self.peers if peer != self.node.address], Goodbye())
        while len(self.done.value) < self.node.workers:
            word = await self.node.receive_any(Goodbye, GradientSlice)
            if isinstance(word, GradientSlice):
                await self.own(word.step, {word.sender.rank: word})
            elif word.sender.rank not in self.done.value:
                self.done.value.append(word.sender.rank)


async def worker(node: Node, replica: Replica, *, codec: Codec, whole: bool, dropping: Dropping | None = None) -> None:
    """Differentiate, hand the slices to their owners, step the own slice, collect the others."""
    if node.incarnation.leased:
        return await leased_worker(node, replica, codec=codec)
    owner = Owner(node, replica, codec, whole, dropping)
    for step in node.steps():
        mine = await owner.hand_out(step, await owner.compute())
        await owner.own(step, {node.rank: mine})
        await owner.collect(step)
    await owner.serve_the_rest()


def check_elementwise(optimizer: Optimizer) -> None:
    if not elementwise(optimizer):
        raise PlanError(
            f"{type(optimizer).__name__} looks at whole parameters, and BigDL's slices cut through them: use an "
            "element-wise optimizer (SGD, Adam, ...), or sliced, which then gives whole parameters to owners"
        )


def slices(name: str, codec: Codec, whole: bool = True, dropping: Dropping | None = None) -> Strategy:
    """The family: any codec; optimizers that need whole parameters get whole ones, or are refused."""

    def roles(workers: int, servers: int) -> list[Role]:
        work, together = partial(worker, codec=codec, whole=whole, dropping=dropping), dropping is None
        return [
            Role(Address("worker", rank), work, trains=True, scored=True, one_batch=together) for rank in range(workers)
        ]

    return Strategy(
        name=name, settings={}, roles=roles,
        description=Description(
            scored="each worker's own slice", rate="unchanged: the mean over all workers' samples", scaling=GROW,
        ),
        terms=TaskTerms(clips="each update"), lease_always=True,
        rigid="a step counts only the parts that were ready in time: omit drop" if dropping else "",
        taxonomy=Taxonomy(
            optimization="central", architecture="peers", scheduling="synchronous", exchange="scatter-reduce",
            topology="distributed PS, k = n",
        ),
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Sliced:
    """Every worker owns 1/n of the parameters and of the optimizer: scatter-reduce, step the slice, all-gather."""

    def strategy(self, workers: int, codec: Codec = dense) -> Strategy:
        return slices("sliced", codec)


@dataclass(frozen=True, kw_only=True, slots=True)
class BigDl:
    """BigDL: sliced, with gradients and weights cut to the upper 16 bits on the wire; element-wise optimizers only."""

    drop: float = 0.0  # the share of the slowest parts of batches that are not waited for
    most: float | None = None  # the share of a step's parts beyond which its update is left out; twice `drop`
    parts: int = 4  # of a batch: how soon a limit is noticed
    warmup: int = 200  # steps before the limit is learned
    window: int = 100  # steps from which it is

    def strategy(self, workers: int) -> Strategy:
        accept = check_elementwise if workers > 1 else None
        most = min(2 * self.drop, 1.0) if self.most is None else self.most
        if not 0 <= self.drop < 1 or not self.drop <= most <= 1:
            raise PlanError(f"bigdl(drop={self.drop:g}, most={most:g}): 0 or more, less than 1, and most no less")
        if self.parts < 1 or self.warmup < 0 or self.window < 1:
            raise PlanError("bigdl: 1 part or more, a warmup of 0 steps or more, a window of 1 or more")
        if self.drop == 0:
            found = slices("bigdl", truncated(), whole=False)
            return replace(found, terms=replace(found.terms, accept=accept))
        dropping = Dropping(self.drop, most, self.parts, self.warmup, self.window)
        found = slices("bigdl", truncated(), whole=False, dropping=dropping)
        return replace(
            found, settings=asdict(dropping),
            terms=replace(found.terms, accept=accept, parts=self.parts, chooses=True),
            description=replace(
                found.description, rate="unchanged: the mean over the samples that were ready in time",
                samples=f"{ONCE}, but about {self.drop:.3g} of the parts of batches are dropped",
            ),
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class CaffeOnSpark:
    """CaffeOnSpark: sliced, in full numbers, between peers of equal rank."""

    def strategy(self, workers: int) -> Strategy:
        return slices("caffeonspark", dense)
