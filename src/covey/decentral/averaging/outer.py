"""Outer optimizers: workers train alone for a block of steps; the mean change of the block is one step of another
optimizer, which all of them keep alike (BMUF, DiLoCo)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from covey.decentral.averaging.common_models import BlockState
from covey.decentral.averaging.leased_periods import leased_periods
from covey.decentral.averaging.local_sgd import average, group
from covey.decentral.averaging.model_means import ModelMeans, model_means
from covey.decentral.averaging.optimizer_state import Momentum
from covey.decentral.averaging.sites import WorkerSite
from covey.decentral.written_settings import written
from covey.errors import PlanError
from covey.exchange.codec import Codec, dense
from covey.exchange.collectives.sums import Group, ring
from covey.message import Address
from covey.model.replica import Replica
from covey.program import Node, Program
from covey.servers.common_states import enter
from covey.servers.leased_rounds import LeasedRounds
from covey.servers.together import Together
from covey.strategy import Description, Role, Strategy, TaskTerms, Taxonomy
from covey.vector import Vector

Block = dict[str, Vector]
"""What every worker keeps alike: the `published` model, where the block `start`s, the `momentum` of the blocks."""

Outer = Callable[[Block, Vector], None]
"""Move the block's vectors by the mean change of all workers in it."""


async def worker(
    node: Node, replica: Replica, *, period: int, outer: Outer, momentum: Momentum, codec: Codec, local: int = 1
) -> None:  # fmt: skip
    """Step alone for a block; then all average, make the same outer step, and begin the next block there.

    Or with `local` neighbours: those step together, and one of them averages with those of other sites.
    """
    if node.incarnation.leased:
        return await leased_worker(node, replica, period=period, outer=outer, momentum=momentum)
    block = node.remember("block", fresh(replica)).value
    done = node.remember("done", [0]).value  # steps
    replica.show(block["published"].join(block["buffers"]))
    models = model_means(node, replica, codec, start=block["start"].join(block["buffers"]))

    state, site = BlockState(node, replica, block, momentum), WorkerSite(node, local)
    together = Together(node, state)

    async def end_block(members: Group) -> None:
        mean = partial(site.average, replica, models, momentum, members)
        if not await together.round(done[0] - 1, members, mean, replica.model):
            return
        step_on(block, replica, outer)
        state.keep()

    for step in node.steps() if await enter(node, replica, together) else ():
        await together.look()
        await site.step(replica, step)
        done[0] = step + 1
        if done[0] % period == 0:
            await end_block(group(node, step))
        await together.part(step)
    if done[0] % period and node.address in last(node, done[0]):
        await end_block(last(node, done[0]))
        done[0] = 0
    await together.leave()


def step_on(block: Block, replica: Replica, outer: Outer) -> None:
    """The model is the mean of all: make the outer step, and begin the next block after it."""
    outer(block, replica.flat - block["start"])
    replica.flat.copy_(block["start"])
    block["buffers"].copy_(replica.buffers)  # statistics are averaged, and that is all


async def leased_worker(node: Node, replica: Replica, *, period: int, outer: Outer, momentum: Momentum) -> None:
    """The same, among those that are there."""
    block, models = fresh(replica), ModelMeans(node, replica)
    replica.show(block["published"].join(block["buffers"]))
    state = BlockState(node, replica, block, momentum)
    rounds = LeasedRounds(node, replica, state)

    async def mean(members: Group) -> None:
        await average(replica, models, members, ring, momentum)

    def then() -> None:
        step_on(block, replica, outer)
        state.keep()

    await leased_periods(node, replica, rounds, lambda first: period, mean, then)


def last(node: Node, done: int) -> Group:
    """Who ends now, after this many steps, with nobody left to go on: those end a block that is cut short.

    A worker whose own budget ends earlier just leaves.
    """
    return group(node, done) or group(node, done - 1)


def fresh(replica: Replica) -> Block:
    return {
        "published": replica.flat.clone(), "buffers": replica.buffers.clone(), "start": replica.flat.clone(),
        "momentum": replica.flat.map(torch.zeros_like),
    }  # fmt: skip


def block_momentum(block: Block, change: Vector, *, momentum: float, rate: float, nesterov: bool) -> None:
    """Chen & Huo 2016: D = m D + z G, W = W + D; with Nesterov the block starts at W + m D, but W is the model."""
    block["momentum"].mul_(momentum).add_(change, alpha=rate)
    block["published"].add_(block["momentum"])
    block["start"].copy_(block["published"])
    if nesterov:
        block["start"].add_(block["momentum"], alpha=momentum)


def nesterov_sgd(block: Block, change: Vector, *, momentum: float, rate: float) -> None:
    """Douillard et al. 2023: PyTorch's SGD with Nesterov momentum, on minus the mean change."""
    block["momentum"].mul_(momentum).add_(change)
    block["published"].add_(change, alpha=rate).add_(block["momentum"], alpha=rate * momentum)
    block["start"].copy_(block["published"])


@dataclass(frozen=True, kw_only=True, slots=True)
class Bmuf:
    """Blockwise model update filtering: the mean change of a block of steps moves the model with block momentum."""

    period: int = 8
    momentum: float | None = None  # 1 - 1/workers (Chen & Huo 2016): the sum of what n workers did, spread over blocks
    rate: float = 1.0
    nesterov: bool = False
    reset: bool = True  # the local optimizers begin every block afresh

    def strategy(self, workers: int, codec: Codec = dense) -> Strategy:
        momentum = 1 - 1 / workers if self.momentum is None else self.momentum
        check("bmuf", self.period, momentum, self.rate)
        outer = partial(block_momentum, momentum=momentum, rate=self.rate, nesterov=self.nesterov)
        settings = written(self, period=self.period, momentum=momentum)
        program = partial(worker, outer=outer, momentum="reset" if self.reset else "keep")
        return strategy("bmuf", settings, program, codec)


@dataclass(frozen=True, kw_only=True, slots=True)
class Diloco:
    """Train alone for hundreds of steps; their mean change is one step of an outer SGD with Nesterov momentum."""

    period: int = 500
    rate: float = 0.7
    momentum: float = 0.9
    local: int = 1  # neighbouring workers of a site, which step together on their mean gradient

    def strategy(self, workers: int, codec: Codec = dense) -> Strategy:
        check("diloco", self.period, self.momentum, self.rate)
        if self.local < 1:
            raise PlanError(f"diloco(local={self.local}): a site has 1 worker or more")
        outer = partial(nesterov_sgd, momentum=self.momentum, rate=self.rate)
        settings = written(self, period=self.period, rate=self.rate, momentum=self.momentum)
        program = partial(worker, outer=outer, momentum="keep", local=self.local)
        return strategy("diloco", settings, program, codec, sites=self.local > 1)


def check(name: str, period: int, momentum: float, rate: float) -> None:
    if period < 1:
        raise PlanError(f"{name}(period={period}): average after every 1 step or more")
    if not 0 <= momentum < 1:
        raise PlanError(f"{name}(momentum={momentum:g}): must lie in [0, 1)")
    if rate <= 0:
        raise PlanError(f"{name}(rate={rate:g}): must be more than 0; 1 takes the mean change as it is")


def strategy(
    name: str, settings: dict[str, Any], program: Program, codec: Codec, sites: bool = False
) -> Strategy:  # fmt: skip
    """The family: what tells its members apart is the outer step."""

    def roles(workers: int, servers: int) -> list[Role]:
        work = partial(program, period=settings["period"], codec=codec)
        # worker 0 has the longest share of the data, so it sees the last block
        return [
            Role(Address("worker", rank), work, trains=True, scored=rank == 0, together=True) for rank in range(workers)
        ]

    return Strategy(
        name=name, settings=settings, roles=roles,
        description=Description(
            scored="the outer model at the end of the last block", rate="unchanged: each worker's own",
        ),
        terms=TaskTerms(clips="each update" if sites else "each gradient"),
        rigid="a lost worker breaks off the sums of its site: omit local" if sites else "",
        taxonomy=Taxonomy(
            optimization="decentral", architecture="peers", scheduling="synchronous", exchange="all-reduce",
            topology="rings within and between sites" if sites else "closed ring",
        ),
    )  # fmt: skip
