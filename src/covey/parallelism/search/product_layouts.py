"""Layouts along several axes at once: stages, shards and divided operators, for every way to multiply their numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import inf, prod

from covey.errors import PlanError
from covey.parallelism.plan.cut import best_cut, smallest_cut
from covey.parallelism.plan.predict import predict
from covey.parallelism.plan.profile import Profile
from covey.parallelism.plan.schedule import Schedule
from covey.parallelism.plan.terms import Cut, CutTerms
from covey.parallelism.search.costs import Devices, OperatorCosts
from covey.parallelism.search.methods import METHODS, Budget
from covey.parallelism.search.operators import OperatorConfig, OperatorGraph, group_configs
from covey.parallelism.search.simulation import Simulation


@dataclass(frozen=True, kw_only=True)
class MeshSizes:
    """How many there are along each axis; `zero` where rows are divided, 0 where they are not."""

    replica: int
    stage: int = 1
    shard: int = 1
    tensor: int = 1
    zero: int = 0


@dataclass(frozen=True, kw_only=True)
class OperatorShare:
    """What one member of a tensor group does and has of one replica's batch."""

    choice: tuple[OperatorConfig, ...]
    seconds: float  # of its computing, and of speaking with the others
    pace: float  # that over the time of the whole model
    weights: float  # bytes
    rest: float  # bytes of what backward needs, and of buffers
    traffic: float  # bytes of all members


@dataclass(frozen=True, kw_only=True)
class ProductCost:
    """What a layout takes."""

    step: float
    memory: float
    traffic: float


class ProductLayouts:
    """All layouts along two axes or three, besides replicas, and what each costs."""

    def __init__(
        self, graph: OperatorGraph, devices: Devices, profile: Profile | None, parts: int, least: bool = False
    ) -> None:  # fmt: skip
        self.graph, self.devices, self.profile, self.least = graph, devices, profile, least
        self.schedule = Schedule(name="1f1b", microbatches=parts)
        self.slow = max(devices.factor(device) for device in range(devices.count))

    def sizes(self) -> list[MeshSizes]:
        """Every mesh of all machines in which at least two axes divide a model."""
        count, found = self.devices.count, list[MeshSizes]()
        divisors = [number for number in range(1, count + 1) if count % number == 0]
        for stage, shard, tensor in product(divisors, repeat=3):
            if count % (stage * shard * tensor) or sum(size > 1 for size in (stage, shard, tensor)) < 2:
                continue
            for zero in (0,) if shard == 1 else (1,) if stage > 1 else (1, 2, 3):
                replica = count // prod((stage, shard, tensor))
                found.append(MeshSizes(replica=replica, stage=stage, shard=shard, tensor=tensor, zero=zero))
        return found

    def choices(self, tensor: int, groups: int = 1) -> list[list[OperatorConfig]]:
        """What alike operators may have, of so many groups with a batch each."""
        graph = self.graph.scaled(groups)
        return [graph.configs(group, group_configs(groups, tensor)) for group in graph.groups]

    def share(self, tensor: int, choice: Sequence[OperatorConfig]) -> OperatorShare:
        """What a member has with this choice."""
        pairs = list(zip(self.graph.operators, choice, strict=True))
        costs = OperatorCosts(self.graph, replace(self.devices, count=tensor, slow=()))
        seconds, alone = Simulation(costs, list(choice)).step, sum(sum(one.seconds(WHOLE)) for one, _ in pairs)
        return OperatorShare(
            choice=tuple(choice), seconds=seconds, pace=seconds / (alone or 1.0),
            weights=sum(one.weights / config.divides for one, config in pairs),
            rest=sum(one.kept / config.divides + one.fixed for one, config in pairs), traffic=costs.traffic(choice),
        )  # fmt: skip

    def searched(self, tensor: int, groups: int, method: str, budget: Budget) -> OperatorShare | None:
        """The share that a method finds, whose groups sum their gradients; nothing where it divides no layer."""
        if tensor == 1:
            return self.share(1, [WHOLE] * len(self.graph))
        costs = OperatorCosts(self.graph.scaled(groups), replace(self.devices, count=groups * tensor, slow=()))
        found = METHODS[method](costs, self.choices(tensor, groups), budget)
        choice = [replace(config, samples=1) for config in found.choice]
        pairs = zip(self.graph.operators, choice, strict=True)
        return self.share(tensor, choice) if any(one.split(config) for one, config in pairs) else None

    def divided(self, share: OperatorShare) -> Profile:
        """The layers as a member of a tensor group has them."""
        assert self.profile is not None
        weights = sum(one.weights for one in self.graph.operators) or 1.0
        kept = sum(one.kept + one.fixed for one in self.graph.operators) or 1.0
        part, rest = share.weights / weights, share.rest / kept
        return replace(self.profile, layers=tuple(
            replace(
                one, forward=share.pace * one.forward, backward=share.pace * one.backward,
                weights=round(part * one.weights) or min(1, one.weights), kept=round(rest * one.kept),
            )
            for one in self.profile.layers
        ))  # fmt: skip

    def terms(self, mesh: MeshSizes) -> CutTerms:
        limit = inf if self.least else self.devices.memory
        return CutTerms(
            stages=mesh.stage, schedule=self.schedule, bandwidth=self.devices.bandwidth, memory=limit, trains=True
        )

    def cut(self, mesh: MeshSizes, share: OperatorShare) -> Cut | None:
        """The planner's, of the layers as members have them; nothing where there is none."""
        if mesh.stage == 1 or self.profile is None:
            return None
        try:
            return (smallest_cut if self.least else best_cut)(self.divided(share), self.terms(mesh))
        except PlanError:  # too few layers, or too little memory
            return None

    def cost(self, mesh: MeshSizes, share: OperatorShare, cut: Cut | None) -> ProductCost:
        """Of a mesh whose operators are divided and whose layers are cut like this."""
        state, passes = self.graph.state, 3 if mesh.zero == 3 else 2
        if cut is None:
            pairs = zip(self.graph.operators, share.choice, strict=True)
            largest = max(one.weights / config.divides for one, config in pairs)
            working = {0: 0.0, 1: 2 * share.weights, 2: share.weights, 3: 2 * largest}[mesh.zero]
            parts = [(share.weights, working + share.rest + (2 + state) * share.weights / mesh.shard)]
            step, traffic = share.seconds, share.traffic
        else:
            found = predict(self.divided(share), cut, self.terms(mesh), self.devices.latency)
            parts = [
                (one.weights, one.memory + ((2 + state) / mesh.shard - state if mesh.shard > 1 else 0) * one.weights)
                for one in found.stages
            ]
            step, traffic = found.step, share.traffic + mesh.tensor * found.traffic
        together = max(
            (passes * self.devices.gathered(weights, mesh.shard) if mesh.shard > 1 else 0.0)
            + self.devices.summed(weights / mesh.shard, mesh.replica) for weights, _ in parts
        )  # fmt: skip
        total = mesh.tensor * sum(weights for weights, _ in parts)
        groups = mesh.replica * mesh.shard
        rows = (passes * (mesh.shard - 1) * mesh.replica + 2 * (mesh.replica - 1)) * total
        return ProductCost(
            step=self.slow * step + together, memory=max(memory for _, memory in parts), traffic=groups * traffic + rows
        )

    def found(
        self, method: str, budget: Budget
    ) -> Iterator[tuple[MeshSizes, OperatorShare, Cut | None, ProductCost]]:
        """Every mesh, with what the method and the planner find for it."""
        shares: dict[tuple[int, int], OperatorShare | None] = {}
        for mesh in self.sizes():
            key = mesh.tensor, mesh.replica * mesh.shard
            if key not in shares:
                shares[key] = self.searched(*key, method, budget)
            share = shares[key]
            cut = self.cut(mesh, share) if share else None
            if share and (cut is None) == (mesh.stage == 1):
                yield mesh, share, cut, self.cost(mesh, share, cut)


WHOLE = OperatorConfig()
