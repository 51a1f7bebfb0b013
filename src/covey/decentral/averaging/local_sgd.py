"""Local SGD: every worker trains alone for a while, then all models are averaged."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from covey.decentral.averaging.common_models import MeanModel
from covey.decentral.averaging.leased_periods import leased_periods
from covey.decentral.averaging.model_means import ModelMeans, model_means
from covey.decentral.averaging.optimizer_state import Momentum, OptimizerMoments
from covey.decentral.written_settings import written
from covey.errors import PlanError
from covey.exchange.averaging import mean_gradient
from covey.exchange.codec import Codec, dense
from covey.exchange.collectives import by_name
from covey.exchange.collectives.compressed import Means, check_pattern
from covey.exchange.collectives.sums import Group, Pattern
from covey.message import Address
from covey.model.replica import Replica
from covey.program import Node
from covey.servers.leased_rounds import LeasedRounds
from covey.servers.together import Together
from covey.strategy import GROW, Description, Role, Strategy, TaskTerms, Taxonomy


@dataclass(frozen=True, slots=True)
class Periods:
    """When models are averaged: known from the step alone, so that all workers agree on it, also after a restart."""

    period: int
    growth: float = 1.0
    after: int = 0

    def ends(self) -> Iterator[int]:
        """The last step of every period; the k-th is round(period * growth^k) steps long, counted from `after`."""
        step, length = self.after - 1, float(self.period)
        while True:
            step += max(1, round(length))
            yield step
            length *= self.growth

    def length(self, first: int) -> int:
        """Of the period that begins with this step."""
        return next(end for end in self.ends() if end >= first) + 1 - first


async def worker(
    node: Node, replica: Replica, *, periods: Periods, momentum: Momentum = "keep", pattern: Pattern, codec: Codec
) -> None:
    """Step alone; at the end of a period replace the model by the mean of all."""
    if node.incarnation.leased:
        return await leased_worker(node, replica, periods=periods, momentum=momentum, pattern=pattern)
    ends, end = periods.ends(), -1
    models = model_means(node, replica, codec, "models")
    gradients = models.of_gradients() if periods.after else None
    state = MeanModel(node, replica, momentum)
    together = Together(node, state)
    for step in node.steps() if await together.enter(replica) else ():
        await together.look()
        if step < periods.after:
            await replica.gradient(node, clip=False)
            await step_together(node, replica, step, pattern, gradients)
            models.begin()
            continue
        await replica.descend(node)
        await node.note("update")
        while end < step:
            end = next(ends)
        if step == end:
            members = group(node, step)
            mean = partial(average, replica, models, members, pattern, momentum)
            if await together.round(step, members, mean, replica.model):
                state.keep()
            models.begin()
        await together.part(step)
    await together.leave()


async def leased_worker(
    node: Node, replica: Replica, *, periods: Periods, momentum: Momentum, pattern: Pattern
) -> None:  # fmt: skip
    """The same, among those that are there."""
    models, state = ModelMeans(node, replica), MeanModel(node, replica, momentum)
    rounds = LeasedRounds(node, replica, state)

    async def mean(members: Group) -> None:
        if len(rounds.ledger.held[node.rank]) != node.step - models.begun:
            models.before = None  # it had no batch in some of the steps since then
        await average(replica, models, members, pattern, momentum)

    def then() -> None:
        state.keep()
        models.begin()

    await leased_periods(node, replica, rounds, periods.length, mean, then)


async def step_together(node: Node, replica: Replica, step: int, pattern: Pattern, means: Means | None) -> None:
    """Before the switch of post-local SGD: every replica takes the same step, on the mean gradient of all samples."""
    present = node.present(step)
    replica.progress.begin(replica.batch_source.together(present, step))
    await mean_gradient(node, replica, replica.grad, group(node, step), pattern, means)
    replica.updates.clip_(replica.grad)
    replica.update()
    if node.rank == present[0]:
        await node.note("update")


async def average(
    replica: Replica, models: ModelMeans, members: Group, pattern: Pattern, momentum: Momentum
) -> None:  # fmt: skip
    """Replace the model by the mean of the group's, and do with the optimizer's state what `momentum` says.

    That one travels as it is, whatever a codec makes of models.
    """
    moments = OptimizerMoments(replica.optimizer, averaged=momentum == "average")
    await models.average(members, pattern, moments.flat)
    moments.put_back()
    if momentum == "reset":
        replica.optimizer.state.clear()


def group(node: Node, step: int) -> Group:
    """The workers that take part in this step."""
    return node.members(step)


@dataclass(frozen=True, kw_only=True, slots=True)
class LocalSgd:
    """Train alone for `period` steps, then average all models with an all-reduce (Lin et al. 2018)."""

    period: int = 8
    growth: float = 1.0  # every period is this many times as long as the one before
    after: int = 0  # post-local SGD: all step together before this step
    momentum: Momentum = "keep"
    pattern: by_name.Name = "ring"
    local: int = 2  # hierarchical: neighbouring workers per machine; 0: as placed

    def strategy(self, workers: int, codec: Codec = dense) -> Strategy:
        check_pattern("local_sgd", self.pattern, codec)
        if self.period < 1:
            raise PlanError(f"local_sgd(period={self.period}): average after every 1 step or more")
        if self.growth < 1:
            raise PlanError(f"local_sgd(growth={self.growth:g}): growth must be 1 or more")
        if self.after < 0:
            raise PlanError(f"local_sgd(after={self.after}): after must be 0 or more; the first step is 0")
        periods = Periods(self.period, self.growth, self.after)
        pattern = by_name.pattern("local_sgd", self.pattern, self.local)

        def roles(workers: int, servers: int) -> list[Role]:
            work = partial(worker, periods=periods, momentum=self.momentum, pattern=pattern, codec=codec)
            return [
                Role(Address("worker", rank), work, trains=True, scored=True, together=True) for rank in range(workers)
            ]

        return Strategy(
            name="local_sgd", settings=written(self, period=self.period), roles=roles,
            rigid="a new worker cannot join the steps before the switch: omit after" if self.after else "",
            terms=TaskTerms(clips="each update" if self.after else "each gradient"),
            description=Description(
                scored="the mean of the workers' models", rate="unchanged: each worker's own", scaling=GROW,
            ),
            taxonomy=Taxonomy(
                optimization="decentral", architecture="peers", scheduling="synchronous", exchange="all-reduce",
                topology=by_name.SHAPES[self.pattern],
            ),
        )  # fmt: skip
