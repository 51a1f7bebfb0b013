"""HALP: SVRG in low precision, whose scale shrinks with the gradient (De Sa et al. 2018, "bit centering").

Now and then all workers compute the full gradient at a centre of full precision. In between only an offset from the
centre is trained, in whole multiples of a scale. The nearer the centre is to the optimum, the finer is the scale, so
that a fixed number of bits does not limit how exact the result is.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch

from covey.data.seeded_draws import mixed
from covey.errors import PlanError
from covey.exchange.collectives.sums import ring
from covey.message import Address
from covey.model.replica import Replica
from covey.program import Node
from covey.strategy import GROW, Description, Role, Strategy, TaskTerms, Taxonomy
from covey.vector import Vector


class BitCentering:
    """A centre, the full gradient there, and the scale of the offset. All of it survives a restart."""

    def __init__(self, node: Node, replica: Replica, plan: Halp) -> None:
        self.node, self.replica, self.plan = node, replica, plan
        zero = replica.flat.map(torch.zeros_like)
        fresh: dict[str, Any] = {"centre": replica.flat.clone(), "full": zero, "scale": 0.0}
        self.kept = node.remember("centering", fresh).value

    @property
    def centre(self) -> Vector:
        return self.kept["centre"]  # type: ignore[no-any-return]

    @property
    def full(self) -> Vector:
        """The gradient of all samples at the centre."""
        return self.kept["full"]  # type: ignore[no-any-return]

    async def move(self, step: int) -> None:
        """Let the model be the centre, compute the full gradient there, and choose the scale of the offset."""
        node, source = self.node, self.replica.batch_source
        self.centre.copy_(self.replica.flat)
        self.full.zero_()
        for batch in range(source.steps(node.rank)):  # those of the first pass, in which each sample is once
            grad = await self.replica.gradient_of(node, node.rank, batch)
            self.full.add_(grad, alpha=self.replica.batch.samples)
        everybody = ((rank, batch) for rank in node.present(step) for batch in range(source.steps(rank)))
        samples = sum(source.samples(rank, batch) for rank, batch in everybody)
        await node.sum(self.full, node.members(step), ring, 1 / samples)
        # With mu-strong convexity the optimum lies within |gradient| / mu of the centre.
        self.kept["scale"] = offset_scale(_norm(self.full), self.plan.bits, self.plan.mu)

    async def descend(self, step: int) -> None:
        """A step on the gradient at the model, less that at the centre, plus the full one; then round the offset."""
        node, replica, group = self.node, self.replica, self.node.members(step)
        grad = (await replica.gradient_of(node, node.rank, step)).clone()
        batch, model = replica.batch, replica.flat.clone()
        with replica.shown.steady():
            replica.load(self.centre)
            grad.add_(await replica.gradient_of(node, node.rank, step), alpha=-1)
            replica.load(model)
        await replica.report(node, batch)
        together = replica.batch_source.together(node.present(step), step)
        replica.progress.begin(together)
        share = batch.samples / together
        replica.buffers.mul_(1 / (share * len(group)))  # of which everybody counts the same
        await node.sum(grad.join(replica.buffers), group, ring, share)
        replica.updates.clip_(grad.add_(self.full))
        replica.apply(grad)
        self.round_(step)

    def round_(self, step: int) -> None:
        """Round the offset at random to whole multiples of the scale: all workers alike, and right on average."""
        chance = torch.Generator().manual_seed(mixed(self.node.seed, step))
        for part, centre in zip(self.replica.flat.parts, self.centre.parts, strict=True):
            if part.is_meta:
                continue
            draws = torch.rand(part.shape, generator=chance, dtype=torch.float64).to(part.device)
            exact = centre.double()
            part.copy_(exact + in_bits(part.double() - exact, self.kept["scale"], self.plan.bits, draws))


def offset_scale(norm: float, bits: int, mu: float) -> float:
    """The distance between two neighbouring offsets, for the norm of the full gradient."""
    return norm / (mu * ((1 << bits - 1) - 1))


def in_bits(offset: torch.Tensor, scale: float, bits: int, draws: torch.Tensor) -> torch.Tensor:
    """The offset in whole multiples of the scale, of which there are as many as the bits can count."""
    if not scale:
        return torch.zeros_like(offset)
    most = 1 << bits - 1
    return (offset / scale + draws).floor_().clamp_(-most, most - 1).mul_(scale)


def _norm(vector: Vector) -> float:
    return 1.0 if any(part.is_meta for part in vector.parts) else vector.norm()


async def worker(node: Node, replica: Replica, *, plan: Halp) -> None:
    """Move the centre to the model every `period` steps; in between train the offset."""
    offset = BitCentering(node, replica, plan)
    for step in node.steps():
        if step % plan.period == 0:
            await offset.move(step)
        await offset.descend(step)
        if node.rank == node.present(step)[0]:
            await node.note("update")
            await node.note("staleness", 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Halp:
    """SVRG whose offset from a centre has few bits, on a scale that shrinks as the gradient does."""

    bits: int = 8
    mu: float = 1.0  # the offset may be |full gradient| / mu: strong convexity, or tuned
    period: int = 100  # steps after which the centre moves

    def strategy(self, workers: int) -> Strategy:
        if not 2 <= self.bits <= 24:
            raise PlanError(f"halp(bits={self.bits}): give 2 to 24 bits; with more there is nothing to round")
        if not 0 < self.mu < float("inf"):
            raise PlanError(f"halp(mu={self.mu:g}): must be more than 0")
        if self.period < 1:
            raise PlanError(f"halp(period={self.period}): at least 1 step")

        def roles(workers: int, servers: int) -> list[Role]:
            work = partial(worker, plan=self)
            return [Role(Address("worker", rank), work, trains=True, scored=rank == 0) for rank in range(workers)]

        return Strategy(
            name="halp", settings=asdict(self), roles=roles,
            description=Description(
                scored="worker 0's model: all are the same", rate="unchanged: the mean over all workers' samples",
                scaling=GROW,
                samples="every sample is used once per epoch in steps, and once more in each full gradient",
            ),
            terms=TaskTerms(clips="each update", chooses=True),
            taxonomy=Taxonomy(
                optimization="central", architecture="peers", scheduling="synchronous", exchange="all-reduce",
                topology="ring",
            ),
        )  # fmt: skip
