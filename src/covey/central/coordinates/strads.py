"""STRADS: a scheduler chooses which variables of a linear model move, and lets only weakly coupled ones move together.

Each round every worker tells slope and curvature of the chosen variables on its batch. The scheduler adds them up,
moves each variable to its own minimum, and remembers how far: what moves far is chosen again soon (Kim et al. 2016).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial

import torch
from torch import Tensor

from covey.central.coordinates.linear_features import CURVATURE, LinearFeatures, layer_of
from covey.central.coordinates.schedule import candidates, correlations, minimum, uncoupled
from covey.errors import PlanError
from covey.message import Address, Message
from covey.model.replica import Replica
from covey.program import Node
from covey.servers.goodbye import Goodbye
from covey.servers.server_program import ServerProgram, serve
from covey.strategy import Description, Role, Strategy, TaskTerms, Taxonomy
from covey.vector import Vector

SCHEDULER = Address("scheduler", 0)


class FeatureProducts(Message):
    """The sums of the products of all pairs of features, over one worker's share of the data."""

    wire_name = "strads.products"

    products: Vector


class AskRound(Message):
    """A worker is ready for the round of this step."""

    wire_name = "strads.ask"
    counted = False

    step: int


class ScheduledRound(Message):
    """The variables of this round, and where those of the last one have moved to."""

    wire_name = "strads.round"

    step: int
    variables: Vector
    moved: Vector
    values: Vector


class PartialUpdate(Message):
    """Slope and curvature of each scheduled variable on one worker's batch."""

    wire_name = "strads.partial"

    step: int
    slopes: Vector
    curvatures: Vector


async def worker(node: Node, replica: Replica) -> None:
    """Measure the features once; then, round by round, tell what the scheduled variables would gain."""
    features = LinearFeatures(replica, layer_of(replica))
    (weights,) = replica.flat.parts
    with features.watched():
        compute = partial(replica.gradient_of, node, node.rank)
        bend = CURVATURE[await features.loss_kind(compute)]
        products = await features.products(compute, replica.batch_source.steps(node.rank))
        await node.send(SCHEDULER, FeatureProducts(Vector([products.reshape(-1)])))
        for step in node.steps():
            await node.send(SCHEDULER, AskRound(step))
            told = await node.receive(ScheduledRound, sender=SCHEDULER, step=step)
            weights[_numbers(told.moved, weights)] = told.values.parts[0].to(weights.device)
            chosen = _numbers(told.variables, weights)
            await replica.gradient(node, clip=False)
            curvatures = bend * features.rows()[:, chosen].square().mean(0)
            slopes = replica.grad.parts[0][chosen]
            await node.send(SCHEDULER, PartialUpdate(step, Vector([slopes]), Vector([curvatures])))
    await node.send(SCHEDULER, Goodbye())


class VariableScheduler(ServerProgram):
    """Holds the model, chooses the variables of each round, and moves them when all workers have told of them."""

    def __init__(self, node: Node, replica: Replica, *, plan: Strads) -> None:
        super().__init__(node, replica)
        self.plan, self.penalty = plan, penalties(replica, plan.l1)
        (self.weights,) = replica.flat.parts
        self.moves: list[float] = node.remember("moves", [0.0] * len(self.weights)).value
        self.variables: list[int] = node.remember("variables", []).value  # of this round
        self.moved: list[int] = node.remember("moved", []).value  # in the last one
        self.round: list[int] = node.remember("round", [-1]).value
        self.products: dict[int, Tensor] = {}  # not remembered: after a restart workers measure them anew
        self.correlation: Tensor | None = None
        self.asked: dict[int, int] = {}  # by rank: the step that a worker waits to hear of
        self.partials: dict[int, PartialUpdate] = {}
        self.hears = {FeatureProducts: self.measured, AskRound: self.ask, PartialUpdate: self.partial}

    async def measured(self, message: FeatureProducts) -> None:
        """When all shares have come, the correlations over all data are known."""
        self.products[message.sender.rank] = message.products.parts[0].reshape(len(self.weights), -1).clone()
        if len(self.products) == self.team:
            together = torch.stack([self.products[rank] for rank in sorted(self.products)]).sum(0)
            self.correlation = correlations(together)

    async def ask(self, message: AskRound) -> None:
        self.asked[message.sender.rank] = message.step

    async def settle(self) -> None:
        """Schedule a round when its first worker asks; tell whoever waits for it."""
        for rank, step in sorted(self.asked.items()):
            if self.correlation is None or step > self.round[0] + (not self.variables):
                continue
            if step > self.round[0]:
                self.schedule(step)
            del self.asked[rank]
            await self.node.send(Address("worker", rank), ScheduledRound(
                step, _list(self.variables), _list(self.moved), Vector([self.weights[self.moved].clone()])
            ))  # fmt: skip

    def schedule(self, step: int) -> None:
        assert self.correlation is not None
        plan = self.plan
        drawn = candidates(self.moves, plan.candidates, plan.eps, self.node.rng)
        self.variables[:] = uncoupled(drawn, self.correlation, plan.rho, plan.most)
        self.round[0] = step

    async def partial(self, message: PartialUpdate) -> None:
        self.partials[message.sender.rank] = message
        present = self.node.present(message.step)
        if len(self.partials) == len(present):
            await self.combine(message.step, present)

    async def combine(self, step: int, present: Sequence[int]) -> None:
        """Move each scheduled variable to its minimum over everybody's samples, in rank order."""
        samples = self.replica.batch_source.samples
        together = self.replica.batch_source.together(present, step)
        slope, curvature = (torch.zeros(len(self.variables), dtype=torch.float64) for _ in range(2))
        for rank in present:
            share = samples(rank, step) / together
            slope += share * self.partials[rank].slopes.parts[0].double().cpu()
            curvature += share * self.partials[rank].curvatures.parts[0].double().cpu()
        chosen = torch.tensor(self.variables, dtype=torch.long)
        before = self.weights[chosen].double().cpu()
        after = minimum(before, slope, curvature, self.penalty[chosen])
        self.weights[chosen] = after.to(self.weights)
        for variable, move in zip(self.variables, (after - before).tolist(), strict=True):
            self.moves[variable] = move
        self.moved[:], self.variables[:] = self.variables, []
        self.partials.clear()
        self.replica.progress.add(together)
        await self.note_update([0])


def penalties(replica: Replica, l1: float) -> Tensor:
    """What each variable's size costs: l1 for a weight, nothing for the bias."""
    layer = layer_of(replica)
    sizes = torch.full((replica.flat.numel,), l1, dtype=torch.float64)
    sizes[layer.in_features :] = 0
    return sizes


def _list(variables: list[int]) -> Vector:
    return Vector([torch.tensor(variables, dtype=torch.int32)])


def _numbers(listed: Vector, beside: Tensor) -> Tensor:
    return listed.parts[0].to(beside.device, torch.long)


@dataclass(frozen=True, kw_only=True, slots=True)
class Strads:
    """A scheduler moves a few weakly coupled variables of a linear model a round, those that moved far more often."""

    candidates: int = 64
    most: int = 8
    rho: float = 0.1
    eps: float = 1e-3
    l1: float = 0.0

    def strategy(self, workers: int) -> Strategy:
        if self.most < 1 or self.candidates < self.most:
            raise PlanError(
                f"strads: most must be 1 or more, and candidates={self.candidates} at least most={self.most}"
            )
        if not 0 < self.rho <= 1:
            raise PlanError(
                f"strads: rho={self.rho:g} must lie in (0, 1]: 0.1 lets hardly coupled variables move together"
            )
        if not self.eps > 0 or self.l1 < 0:
            raise PlanError("strads: eps must be more than 0, so that every variable may be chosen, and l1 0 or more")

        def roles(workers: int, servers: int) -> list[Role]:
            group = [Role(Address("worker", rank), worker, trains=True) for rank in range(workers)]
            return [*group, Role(SCHEDULER, partial(serve, VariableScheduler, plan=self), scored=True)]

        return Strategy(
            name="strads", settings=asdict(self), roles=roles,
            description=Description(
                scored="the scheduler's model", rate="not used: each variable moves to its own minimum",
                scaling="it is not used",
            ),
            terms=TaskTerms(clips="never", chooses=True),
            taxonomy=Taxonomy(
                parallelism="model + data", optimization="central", architecture="server", scheduling="synchronous",
                exchange="ad hoc", topology="scheduler",
            ),
        )  # fmt: skip
