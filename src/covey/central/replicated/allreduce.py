"""All-reduce: every worker holds the same optimizer state and applies the same mean gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from covey.central.replicated.cut_rounds import cut_worker
from covey.central.replicated.switch import SWITCH, Switch, switched
from covey.errors import PlanError
from covey.exchange.auto import means as means_of
from covey.exchange.averaging import mean_gradient
from covey.exchange.codec import Codec, dense
from covey.exchange.collectives import by_name
from covey.exchange.collectives.compressed import check_pattern, gradient_coder
from covey.exchange.collectives.costs import SLOTS
from covey.exchange.collectives.probe import PatternChoice, PatternRequest, Trial
from covey.exchange.collectives.ring_slices import Frame
from covey.exchange.collectives.sums import Group, Pattern
from covey.exchange.gradient_noise import NoiseProbe, due
from covey.exchange.two_levels import MachineMeans
from covey.message import Address
from covey.model.replica import Replica
from covey.parallelism.axis import Within
from covey.parallelism.cut_replica import CutReplica
from covey.program import Memory, Node, Program
from covey.servers.common_states import WholeReplica, enter, expect_losses
from covey.servers.leased_batches import leased_gradient
from covey.servers.leased_rounds import LeasedRounds, one_step
from covey.servers.server_program import serve
from covey.servers.together import Together
from covey.simulate.units import parse_size
from covey.strategy import GROW, Description, Role, Strategy, TaskTerms, Taxonomy
from covey.vector import Piece, Vector, ranges


async def compressed(node: Node, replica: Replica, *, codec: Codec, summing: Pattern, local: int) -> None:
    """The same with gradients that travel compressed, after backward, and in a pattern that was told.

    With `local` they are summed as they are on machines of this many, and compressed between those.
    """
    means = MachineMeans(node, codec, local) if local else means_of(node, gradient_coder(node, replica, codec))
    for step in node.steps():
        present = node.present(step)
        await replica.gradient(node, clip=False)
        replica.progress.begin(replica.batch_source.together(present, step))
        await mean_gradient(node, replica, replica.grad, node.members(step), summing, means)
        await update(node, replica, present)


async def update(node: Node, replica: Replica, present: Sequence[int]) -> None:
    """Step on the mean gradient, as everybody does."""
    replica.updates.clip_(replica.grad)
    replica.update()
    if node.rank == present[0]:
        await tell_update(node)


async def tell_update(node: Node) -> None:
    """Leave in the result that all have stepped."""
    await node.note("update")
    await node.note("staleness", 0)


async def worker(node: Node, replica: Replica, *, wish: PatternRequest, local: int) -> None:
    """Differentiate, sum over all workers, step; the replicas stay bit-identical.

    What is to be measured is measured after a first step: without buckets, and in a ring unless told otherwise.
    """
    if node.incarnation.elastic and not isinstance(node.host, Within):
        expect_losses(replica)
    if node.incarnation.leased:
        return await leased_worker(node, replica, summing=by_name.pattern("allreduce", wish.pattern, local))
    if node.incarnation.elastic and isinstance(node.host, Within):
        assert isinstance(replica, CutReplica), "along an axis everybody has a part of the model"
        summing = by_name.pattern("allreduce", wish.pattern, local)
        return await cut_worker(node, replica, node.host, summing, tell_update)
    choice = node.remember("choice", PatternChoice()) if wish.open else Memory(wish.granted)
    told = not wish.open
    together = Together(node, WholeReplica(replica))
    for step in node.steps() if await enter(node, replica, together) else ():
        present, group, now = node.present(step), node.members(step), choice.value
        summing = by_name.pattern("allreduce", now.pattern, local) if now.pattern else Trial(wish.first, local)
        # a loop of one's own may change gradients after backward, so nothing can leave before its end
        if now.bucket and replica.batch_source.chosen is not None:
            compute = await stream(node, replica, group, now, summing)
        else:
            compute = await differentiated(node, replica)
            mean = partial(mean_gradient, node, replica, replica.grad, group, summing)
            if not await together.round(step, group, mean, replica.buffers, compute=replica.compute):
                continue
        await update(node, replica, present)
        await together.part(step)
        if isinstance(summing, Trial):
            choice.value = await summing.choose(node, group, wish, replica.grad.nbytes, compute)
        if node.rank == present[0] and not told:
            told = True
            await tell(node, choice.value)
    await together.leave()


async def leased_worker(node: Node, replica: Replica, *, summing: Pattern) -> None:
    """The same, among those that are there: each step is on the mean gradient of the samples that they have in it."""
    rounds = LeasedRounds(node, replica, WholeReplica(replica))

    async def mean(group: Group) -> None:
        replica.progress.begin(rounds.samples)
        await mean_gradient(node, replica, replica.grad, group, summing)

    going = await rounds.begin_here()
    while going:
        while await rounds.next(one_step) and node.training():
            if lease := rounds.lease():
                await leased_gradient(node, replica, lease, clip=False)
            if await rounds.conclude(mean, replica.buffers, compute=replica.compute):
                await update(node, replica, [who.rank for who in rounds.group])
                await rounds.hand_out()
        going = not await rounds.part_from_all()


async def differentiated(node: Node, replica: Replica) -> float:
    """Compute the gradient, which is summed after backward; how long that took."""
    begin = await node.now()
    await replica.gradient(node, clip=False)
    compute = await node.now() - begin
    # exactly: a schedule must give every replica the same rate
    replica.progress.begin(replica.batch_source.together(node.present(node.step), node.step))
    return compute


async def stream(node: Node, replica: Replica, group: Group, choice: PatternChoice, summing: Pattern) -> float:
    """The same in buckets, last layers first: one is summed while backward works on the next (taxonomy E.1)."""
    begin = await node.now()
    together = replica.batch_source.together(node.present(node.step), node.step)
    mine = replica.batch_source.samples(node.rank, node.step)
    share = mine / together
    async for piece in replica.stream(node, choice.bucket):
        bucket, frame = _framed(replica.grad, piece)
        probe = NoiseProbe(node, bucket, mine) if due(node.step) else None
        await node.sum(bucket, group, by_name.of_bucket(choice.pattern, summing, frame), share)
        if probe:
            probe.met(bucket, together)
    replica.progress.begin(together)
    if replica.buffers.parts:
        await node.sum(replica.buffers.mul_(1 / (share * len(group))), group, summing, share)
    return await node.now() - begin


def _framed(whole: Vector, piece: Piece) -> tuple[Vector, Frame]:
    """What lies in a piece, and where that is."""
    found = [
        (part[start:stop], (start, part.numel()))
        for part, ends in zip(whole.parts, piece, strict=True)
        for start, stop in ranges(ends)
        if start < stop
    ]
    return Vector(part for part, _ in found), tuple(place for _, place in found)


async def tell(node: Node, choice: PatternChoice) -> None:
    """Leave in the result what was chosen, and for which link."""
    if choice.native:
        return await node.note("pattern of the engine")
    await node.note(f"pattern {choice.pattern}")
    await node.note("bucket", choice.bucket)
    await node.note("link latency", choice.latency)
    if choice.byte:
        await node.note("link bandwidth", 1 / choice.byte)


WINDOW = "1MB"  # of a switch, unless told otherwise


@dataclass(frozen=True, kw_only=True, slots=True)
class Allreduce:
    """All-reduce of gradients with a replicated optimizer, as PyTorch's DistributedDataParallel does."""

    pattern: by_name.Name | Literal["switch", "auto"] = "ring"  # auto: what is fastest on the link as it is measured
    local: int = 2  # hierarchical: neighbouring workers per machine; 0: as placed
    bucket: int | str = 0  # bytes of gradient that leave together, such as 4MB, while backward runs; auto: as measured
    window: int | str = WINDOW  # switch: bytes of its memory, which is what may be under way

    def strategy(self, workers: int, codec: Codec = dense) -> Strategy:
        if self.pattern != "auto":
            by_name.pattern("allreduce", self.among_workers, self.local)
        work = codec.either(self.uncompressed, self.compressed)(codec)
        switch: list[Role] = []
        window = self.window_bytes()
        if self.pattern == "switch":
            work = partial(switched, work=work, window=window)
            switch = [Role(SWITCH, partial(serve, Switch))]

        def roles(workers: int, servers: int) -> list[Role]:
            members = (
                Role(Address("worker", rank), work, trains=True, scored=rank == 0, one_batch=True, together=True)
                for rank in range(workers)
            )
            return [*members, *switch]

        return Strategy(
            name="allreduce", settings=self.written(), roles=roles,
            description=Description(
                scored="worker 0's model: all are the same", rate="unchanged: the mean over all workers' samples",
                scaling=GROW,
            ),
            terms=TaskTerms(clips="each update", streams=bool(self.bucket)), rigid=self.rigid(),
            taxonomy=Taxonomy(
                optimization="central", architecture="peers", scheduling="synchronous",
                exchange="all-reduce" if codec.adds_up else "all-gather",
                topology=by_name.SHAPES[self.pattern],
            ),
        )  # fmt: skip

    def uncompressed(self, codec: Codec) -> Program:
        local = 0 if self.pattern == "auto" else self.local  # machines as they are, where that is up to the group
        return partial(worker, wish=PatternRequest(pattern=self.among_workers, bucket=self.bucket_bytes()), local=local)

    def compressed(self, codec: Codec) -> Program:
        levels = self.pattern == "hierarchical" and not codec.adds_up
        if not levels:
            check_pattern("allreduce", self.pattern, codec)
        elif not self.local:
            raise PlanError(f"allreduce(local=0) with {codec.name}: say how many neighbouring workers are a machine")
        if self.pattern == "auto" or self.bucket:
            raise PlanError(
                f"allreduce with {codec.name}: a codec sees the whole gradient, after backward, so bucket=0; and what "
                "auto measures is for plain numbers, so name the pattern"
            )
        summing = by_name.pattern("allreduce", self.among_workers, self.local)
        return partial(compressed, codec=codec, summing=summing, local=self.local if levels else 0)

    @property
    def among_workers(self) -> str:
        """The pattern that workers would sum in, where no switch does it for them."""
        return "ring" if self.pattern == "switch" else self.pattern

    def rigid(self) -> str:
        """Why a round that a loss broke off could not be repeated, if so."""
        if self.pattern == "switch":
            return "the switch waits for the lost worker's part of a sum: use another pattern"
        if self.pattern == "auto":
            return "what the workers measured is not told to a new one: name a pattern"
        return "a sum is broken off in the middle of backward: use bucket=0" if self.bucket else ""

    def window_bytes(self) -> int:
        size = self.window if isinstance(self.window, int) else parse_size(self.window)
        if size < SLOTS * 8:
            raise PlanError(f"allreduce(window={size}): a switch needs {SLOTS * 8} bytes or more, such as 1MB")
        if self.pattern != "switch" and self.window != WINDOW:
            raise PlanError(f"allreduce(window={size}) is for pattern=switch, not for pattern={self.pattern}")
        return size

    def bucket_bytes(self) -> int | Literal["auto"]:
        if self.bucket == "auto":
            if self.pattern == "switch":
                raise PlanError("allreduce(bucket=auto, pattern=switch): auto measures sums among workers; give bytes")
            return "auto"
        size = self.bucket if isinstance(self.bucket, int) else parse_size(self.bucket)
        if size < 0:
            raise PlanError(f"allreduce(bucket={size}): give bytes, such as 4MB, or auto; 0 is one sum after backward")
        return size

    def written(self) -> dict[str, object]:
        """A ring after backward goes without saying."""
        pattern = {} if self.pattern == "ring" else {"pattern": self.pattern}
        machine: dict[str, object] = {"local": self.local} if self.pattern == "hierarchical" else {}
        machine |= {"window": self.window} if self.pattern == "switch" else {}
        return {**pattern, **machine, **({"bucket": self.bucket} if self.bucket else {})}
