"""Gradient coding: each part of the data is computed by s + 1 workers, so that any n - s of them give the exact sum.

Tandon et al. 2017. Late codes change nothing, and a straggler goes on with the step that is current then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial

import torch
from torch import Tensor

from covey.central.replicated.codes import EXACT, Scheme, code, decode, error, tolerated
from covey.errors import PlanError
from covey.message import Address, Message
from covey.model.batches import Batch
from covey.model.replica import Replica
from covey.names import option
from covey.program import Node
from covey.servers.clients import caught_up
from covey.servers.goodbye import Goodbye
from covey.servers.server_program import ServerProgram, serve
from covey.strategy import GROW, Description, Role, ServerPlan, Strategy, TaskTerms, Taxonomy
from covey.vector import Vector

SERVER = Address("server", 0)


class AskCurrent(Message):
    """A worker asks for the parameters of its step, or of a later one."""

    wire_name = "coded.ask_current"

    step: int

    counted = False


class Current(Message):
    """The parameters of the step that is current."""

    wire_name = "coded.current"

    step: int
    params: Vector


class Coded(Message):
    """A combination of the gradients of several parts."""

    wire_name = "coded.coded"

    step: int
    grad: Vector
    buffers: Vector


async def worker(node: Node, replica: Replica, *, stragglers: int, scheme: Scheme) -> None:
    """Compute every part of one's row at the current weights, and send their combination."""
    coded = replica.grad.map(torch.zeros_like)
    while node.training():
        await node.send(SERVER, AskCurrent(node.step))
        step = (await node.receive(Current, sender=SERVER, into=replica.flat)).step
        if not caught_up(node, step):
            break
        present = node.present(step)
        row = code_of(len(present), stragglers, scheme)[present.index(node.rank)]
        coded.zero_()
        for index in row.nonzero().view(-1).tolist():
            grad = await replica.gradient_of(node, present[index], step)
            coded.add_(grad, alpha=float(row[index]) * replica.batch.samples)
            if present[index] == node.rank:
                own = replica.batch
        await replica.report(node, Batch(own.loss, 0))  # the server counts samples, once each
        await node.send(SERVER, Coded(step, coded, replica.buffers))
    await node.send(SERVER, Goodbye())


def code_of(present: int, stragglers: int, scheme: Scheme) -> Tensor:
    """The code of those who are still there."""
    return code(present, tolerated(present, stragglers, scheme), scheme)


class Decoder(ServerProgram):
    """The server's work: as soon as enough codes of the current step are there, decode them and step."""

    def __init__(self, node: Node, replica: Replica, *, stragglers: int, scheme: Scheme) -> None:
        super().__init__(node, replica)
        self.stragglers, self.scheme = stragglers, scheme
        self.step = node.remember("step", [0])
        self.asked: dict[int, int] = {}
        self.codes: dict[int, Coded] = {}
        self.hears = {AskCurrent: self.ask, Coded: self.take}

    async def ask(self, ask: AskCurrent) -> None:
        self.asked[ask.sender.rank] = ask.step

    async def take(self, coded: Coded) -> None:
        """Late codes are dropped: their parts were counted without them."""
        step = self.step.value[0]
        if coded.step != step:
            assert coded.step < step, "a code of a step that has not begun"
            return
        present = self.node.present(step)
        self.codes[coded.sender.rank] = coded
        if len(self.codes) < len(present) - tolerated(len(present), self.stragglers, self.scheme):
            return
        matrix = code_of(len(present), self.stragglers, self.scheme)
        ranks = sorted(self.codes)
        factors = decode(matrix, [present.index(rank) for rank in ranks])
        codes = [self.codes.pop(rank) for rank in ranks]
        await self.update(step, present, codes, factors)
        self.step.value[0] += 1

    async def update(self, step: int, present: Sequence[int], codes: list[Coded], factors: list[float]) -> None:
        samples = sum(self.replica.batch_source.samples(rank, step) for rank in present)
        await self.node.note("samples", samples)
        await self.note_update(0 for _ in codes)
        grad = codes[0].grad.map(torch.zeros_like)
        for coded, factor in zip(codes, factors, strict=True):
            grad.add_(coded.grad, alpha=factor / samples)
        self.replace_buffers([coded.buffers for coded in codes])
        self.replica.apply(self.replica.updates.clip_(grad))
        self.replica.progress.add(samples)

    async def settle(self) -> None:
        step = self.step.value[0]
        for rank in sorted(self.asked):
            if self.asked[rank] <= step:
                del self.asked[rank]
                await self.node.send(Address("worker", rank), Current(step, self.replica.flat))


@dataclass(frozen=True, kw_only=True, slots=True)
class GradientCoding:
    """Gradient coding: the exact mean gradient from any n - s workers, each of which computes s + 1 parts."""

    stragglers: int = 1
    scheme: Scheme = "blocks"  # who shares parts: as few as can be; cyclic: all; fractional: s + 1, all the same parts

    def strategy(self, workers: int) -> Strategy:
        if not 0 <= self.stragglers < max(2, workers):  # 1, which is usual, may stand where there is one worker
            raise PlanError(
                f"gradient_coding(stragglers={self.stragglers}): 0 or more, and fewer than the {workers} workers"
            )
        self.check(workers, min(self.stragglers, workers - 1))

        def roles(workers: int, servers: int) -> list[Role]:
            if servers != 1:
                raise PlanError(f"{option('servers', servers)}: gradient_coding decodes whole gradients, on 1 server")
            work = partial(worker, stragglers=self.stragglers, scheme=self.scheme)
            tend = partial(serve, Decoder, stragglers=self.stragglers, scheme=self.scheme)
            return [
                *(Role(Address("worker", rank), work, trains=True) for rank in range(workers)),
                Role(SERVER, tend, scored=True),
            ]

        return Strategy(
            name="gradient_coding", settings=asdict(self), roles=roles, servers=ServerPlan(1),
            description=Description(
                scored="the server's parameters", rate="unchanged: the mean over all workers' samples", scaling=GROW,
                samples="every sample counts once per epoch, and is computed by up to s + 1 workers",
            ),
            terms=TaskTerms(clips="each update", chooses=True),
            taxonomy=Taxonomy(
                optimization="central", architecture="server", scheduling="synchronous", exchange="reduce / broadcast",
                topology="single server",
            ),
        )  # fmt: skip

    def check(self, workers: int, stragglers: int) -> None:
        """Refuse what cannot be grouped, and what float32 cannot decode: the conditioning of a code is known before."""
        if self.scheme == "fractional" and workers % (stragglers + 1):
            fit = ", ".join(str(s) for s in range(workers) if workers % (s + 1) == 0)
            raise PlanError(
                f"gradient_coding(scheme=fractional): {workers} workers cannot be put into groups of {stragglers + 1}; "
                f"use scheme=blocks, or stragglers={fit}"
            )
        inexact = error(workers, stragglers, self.scheme)
        if inexact > EXACT:
            schemes: tuple[Scheme, ...] = ("blocks", "cyclic")
            ways = [(scheme, tolerated(workers, stragglers, scheme)) for scheme in schemes]
            works = " or ".join(f"scheme={scheme} with stragglers={most}" for scheme, most in ways)
            raise PlanError(
                f"gradient_coding(stragglers={stragglers}, scheme={self.scheme}): what {workers} workers' "
                f"codes decode to could be wrong by {inexact:.1g}, where {EXACT:g} is allowed; use {works}"
            )
