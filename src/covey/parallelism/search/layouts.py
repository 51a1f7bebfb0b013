"""Layouts of a model over some machines: what each would take, whether a run can do it, and what to type."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase

from covey.errors import PlanError
from covey.parallelism.plan.cut import best_cut, smallest_cut
from covey.parallelism.plan.mesh import Mesh
from covey.parallelism.plan.predict import predict
from covey.parallelism.plan.profile import Profile
from covey.parallelism.plan.schedule import Schedule
from covey.parallelism.plan.terms import CutTerms
from covey.parallelism.search.costs import Devices, OperatorCosts
from covey.parallelism.search.methods import METHODS, Budget, SearchResult
from covey.parallelism.search.operators import OperatorConfig, OperatorGraph, every_config, group_configs
from covey.parallelism.search.product_layouts import ProductLayouts
from covey.parallelism.search.simulation import Simulation

STUDY = "study only"


@dataclass(frozen=True, kw_only=True)
class ModelLayout:
    """One way to lay a model out, for one step in which every replica has a batch."""

    plan: str  # in words
    strategy: str = ""  # the SPEC that runs it; empty: nothing does
    method: str  # how it was found
    step: float  # seconds
    samples: int  # of all replicas in a step
    memory: float  # bytes of the fullest machine
    traffic: float  # bytes of all machines in a step
    why_not: str = ""  # why no run can do it
    workers: int = 0
    judged: float | None = None  # seconds of a step in virtual time
    splits: tuple[tuple[str, str], ...] = ()  # layers that are divided, and how

    @property
    def runs(self) -> bool:
        return bool(self.strategy) and not self.why_not

    @property
    def order(self) -> tuple[bool, bool, float]:
        """What runs first; of those what was judged, as formulas and virtual time may differ; then the fastest."""
        return not self.runs, self.judged is None, self.pace

    @property
    def pace(self) -> float:
        """Seconds for each sample: what layouts are compared by."""
        return (self.judged or self.step) / self.samples


def refusal(mesh: dict[str, int], workers: int) -> str:
    """Why a run cannot have this mesh; the mesh itself knows which axes there are and which go together."""
    try:
        Mesh(**mesh).fitted(workers)  # type: ignore[arg-type]
    except TypeError:
        return f"{STUDY}: no run has the axis {next(axis for axis in mesh if axis not in Mesh.__slots__)} yet"
    except PlanError as error:
        return str(error)
    return ""


class LayoutSearch:
    """All layouts of a model over these machines. The graph, and the profile of layers, are of one replica's batch.

    With `least` it looks for those that need the least memory, however slow they are.
    """

    def __init__(
        self, graph: OperatorGraph, devices: Devices, profile: Profile | None = None, parts: int = 4,
        least: bool = False,
    ) -> None:  # fmt: skip
        self.graph, self.devices, self.profile, self.parts, self.least = graph, devices, profile, parts, least
        self.count = devices.count
        self.notes: list[str] = []  # why a method gave up

    def all(self, method: str, budget: Budget) -> list[ModelLayout]:
        """Data parallelism first; then what a run can do, and what is for study, each the fastest first."""
        names = list(METHODS) if method == "all" else [method]
        budget = replace(budget, seconds=budget.seconds / (len(names) * (3 * len(_groups(self.count)) + 1)))
        rest = [self.alone(), *self.sharded(), *self.experts(), *self.pipelines()]
        for name in names:
            for find in (self.tensor, self.products) if self.least else (self.tensor, self.products, self.study):
                rest += self._found(find(name, budget))
        fitting = [one for one in rest if self.least or one.memory <= self.devices.memory]
        order = (lambda one: (one.memory, *one.order)) if self.least else (lambda one: one.order)
        worst_first = sorted(fitting, key=order, reverse=True)
        best = {layout.plan: layout for layout in worst_first}  # the best of each plan
        return [self.data_parallel(), *sorted(best.values(), key=order)]

    def _found(self, layouts: Iterator[ModelLayout]) -> Iterator[ModelLayout]:
        """What a method finds until it gives up; why it does is noted."""
        try:
            yield from layouts
        except PlanError as error:
            if str(error) not in self.notes:
                self.notes.append(str(error))

    def smallest(self) -> LayoutSearch:
        """The same, in search of the least memory: methods prefer what is nearer to a limit that nothing meets."""
        return LayoutSearch(self.graph, replace(self.devices, memory=1.0), self.profile, self.parts, least=True)

    def alone(self) -> ModelLayout:
        """One machine does it all: where the others help less than they cost."""
        devices = replace(self.devices, count=1, slow=())
        costs, choice = OperatorCosts(self.graph, devices), self.graph.data_parallel(1)
        return replace(self._of(costs, choice, "one machine alone", "allreduce", "given"), workers=1)

    def data_parallel(self) -> ModelLayout:
        graph = self.graph.scaled(self.count)
        costs, choice = OperatorCosts(graph, self.devices), graph.data_parallel(self.count)
        return self._of(costs, choice, "data parallel", "allreduce", "given")

    def tensor(self, method: str, budget: Budget) -> Iterator[ModelLayout]:
        """Replicas whose members divide operators: each group of alike ones as the method chooses."""
        for replicas, members in _groups(self.count):
            graph = self.graph.scaled(replicas)
            costs = OperatorCosts(graph, self.devices)
            allowed = group_configs(replicas, members)
            choices = [graph.configs(group, allowed) for group in graph.groups]
            found = METHODS[method](costs, choices, budget)
            mesh = {"replica": replicas, "tensor": members}
            if splits_of(graph, found.choice):
                words = " ".join(f"{name}:{kind}" for name, kind in splits_of(graph, found.choice))
                spec = f'allreduce with {_mesh(mesh)[:-1]}, split="{words}")'
                yield self._of(costs, found.choice, _shown(mesh), spec, method, mesh)

    def products(self, method: str, budget: Budget) -> Iterator[ModelLayout]:
        """Stages, shards and divided operators in one mesh."""
        layouts = ProductLayouts(self.graph, self.devices, self.profile, self.parts, self.least)
        for sizes, share, cut, cost in layouts.found(method, budget):
            mesh = {name: size for name, size in asdict(sizes).items() if size > 1 or name in ("replica", "zero")}
            mesh = {name: size for name, size in mesh.items() if size}
            mesh |= {"microbatches": self.parts} if cut else {}
            splits = splits_of(self.graph, share.choice)
            words = " ".join(f"{name}:{kind}" for name, kind in splits)
            said = f', split="{words}"' if words else ""
            said += f", cut={':'.join(map(str, cut.after))}" if cut else ""
            yield ModelLayout(
                plan=_shown(mesh), strategy=f"allreduce with {_mesh(mesh)[:-1]}{said})", workers=self.count,
                method=method if words else "planner", step=cost.step, memory=cost.memory, traffic=cost.traffic,
                samples=sizes.replica * sizes.shard * self.graph.samples, splits=splits,
                why_not=refusal(mesh, self.count),
            )  # fmt: skip

    def study(self, method: str, budget: Budget) -> Iterator[ModelLayout]:
        """Each operator in any configuration on any of the machines (SOAP), for data parallelism's samples."""
        graph = self.graph.scaled(self.count)
        costs, allowed = OperatorCosts(graph, self.devices), every_config(self.count, anywhere=method != "dp")
        choices = [graph.configs(group, allowed) for group in graph.groups]
        found: SearchResult = METHODS[method](costs, choices, budget)
        if found.choice != graph.data_parallel(self.count):
            kinds = len(set(found.choice))
            why = f"{STUDY}: no run divides {kinds} kinds of operators differently" if kinds > 1 else (
                f"{STUDY}: no run computes all samples as {found.choice[0]}"
            )  # fmt: skip
            yield replace(self._of(costs, found.choice, f"each operator apart ({method})", "", method), why_not=why)

    def _of(
        self, costs: OperatorCosts, choice: Sequence[OperatorConfig], plan: str, strategy: str, method: str,
        mesh: dict[str, int] | None = None,
    ) -> ModelLayout:  # fmt: skip
        return ModelLayout(
            plan=plan, strategy=strategy, method=method, workers=self.count, step=Simulation(costs, choice).step,
            samples=costs.graph.samples, memory=max(costs.memory(choice)), traffic=costs.traffic(choice),
            why_not=refusal(mesh, self.count) if mesh else "", splits=splits_of(costs.graph, choice),
        )  # fmt: skip

    def sharded(self) -> Iterator[ModelLayout]:
        """Rows of every parameter divided among shards: ZeRO's stages, and with several replicas MiCS."""
        weights = sum(operator.weights for operator in self.graph.operators)
        largest = max(operator.weights for operator in self.graph.operators)
        rest = sum(operator.kept + operator.fixed for operator in self.graph.operators)
        alone = sum(sum(operator.seconds(OperatorConfig())) for operator in self.graph.operators)
        slow = max(self.devices.factor(device) for device in range(self.count))
        for replicas, shards in _groups(self.count):
            for zero, passes in ((1, 2), (2, 2), (3, 3)):
                owned = (2 + self.graph.state) * weights / shards
                whole = {1: 2 * weights, 2: weights, 3: 2 * largest}[zero]
                between = self.devices.summed(weights / shards, replicas)
                mesh = {"replica": replicas, "shard": shards, "zero": zero}
                yield ModelLayout(
                    plan=_shown(mesh), strategy=f"allreduce with {_mesh(mesh)}", method="formulas", workers=self.count,
                    step=slow * alone + passes * self.devices.gathered(weights, shards) + between,
                    samples=replicas * shards * self.graph.samples, memory=owned + whole + rest,
                    traffic=passes * (shards - 1) * weights * replicas + 2 * (replicas - 1) * weights,
                    why_not=refusal(mesh, self.count),
                )  # fmt: skip

    def experts(self) -> Iterator[ModelLayout]:
        """Experts divided among members, which have all other weights, as with zero=1, and batches of their own.

        Tokens travel to their experts and back, forward and backward.
        """
        layers = [one for one in self.graph.operators if one.experts]
        apart = sum(one.routed for one in layers)
        dense = sum(one.weights for one in self.graph.operators) - apart
        rest = sum(operator.kept + operator.fixed for operator in self.graph.operators)
        alone = sum(sum(operator.seconds(OperatorConfig())) for operator in self.graph.operators)
        slow = max(self.devices.factor(device) for device in range(self.count))
        for replicas, members in _groups(self.count) if layers else ():
            if members > min(one.experts for one in layers):
                continue
            tokens = sum(4 * self.devices.gathered(one.tokens, members) for one in layers)
            between = self.devices.summed((apart + dense) / members, replicas)
            mesh = {"replica": replicas, "expert": members}
            yield ModelLayout(
                plan=_shown(mesh), strategy=f"allreduce with {_mesh(mesh)}", method="formulas", workers=self.count,
                step=slow * alone + tokens + 2 * self.devices.gathered(dense, members) + between,
                samples=self.count * self.graph.samples,
                memory=(2 + self.graph.state) * (apart + dense) / members + 2 * dense + rest,
                traffic=2 * (members - 1) * dense * replicas + 2 * (replicas - 1) * (apart + dense)
                + 4 * (members - 1) * replicas * sum(one.tokens for one in layers),
                why_not=refusal(mesh, self.count),
            )  # fmt: skip

    def pipelines(self) -> Iterator[ModelLayout]:
        """Stages by PipeDream's planner, under 1f1b; the replicas of each sum its gradients."""
        for replicas, stages in _groups(self.count) if self.profile else ():
            assert self.profile is not None
            terms = CutTerms(
                stages=stages, schedule=Schedule(name="1f1b", microbatches=self.parts),
                bandwidth=self.devices.bandwidth, memory=math.inf if self.least else self.devices.memory, trains=True,
            )  # fmt: skip
            try:
                cut = (smallest_cut if self.least else best_cut)(self.profile, terms)
                found = predict(self.profile, cut, terms, self.devices.latency)
            except PlanError:
                continue  # too few layers, or too little memory
            slow = max(self.devices.factor(device) for device in range(self.count))
            sums = [self.devices.summed(stage.weights, replicas) for stage in found.stages]
            mesh = {"replica": replicas, "stage": stages, "microbatches": self.parts}
            said = f"{_mesh(mesh)[:-1]}, cut={':'.join(map(str, found.cut.after))})"
            yield ModelLayout(
                plan=_shown({"replica": replicas, "stage": stages}), strategy=f"allreduce with {said}",
                method="planner", workers=self.count, step=slow * found.step + max(sums),
                samples=replicas * self.graph.samples, memory=found.memory, why_not=refusal(mesh, self.count),
                traffic=replicas * found.traffic + sum(2 * (replicas - 1) * stage.weights for stage in found.stages),
            )  # fmt: skip


def splits_of(graph: OperatorGraph, choice: Sequence[OperatorConfig]) -> tuple[tuple[str, str], ...]:
    """Layers that are divided, and how, as `split=` of a mesh says it: `*` for numbers where that means no others."""
    named = {
        operator.name: operator.split(config)
        for operator, config in zip(graph.operators, choice, strict=True) if operator.split(config)
    }  # fmt: skip
    found: dict[str, str] = {}
    for name, kind in named.items():
        pattern = re.sub(r"\b[0-9]+\b", "*", name)
        meant = {named.get(layer) for layer in graph.layers if fnmatchcase(layer, pattern)}
        found[pattern if meant == {kind} and not pattern.endswith("*") else name] = kind
    return tuple(found.items())


def _groups(count: int) -> list[tuple[int, int]]:
    """Replicas, and members of each, two or more."""
    return [(count // members, members) for members in range(2, count + 1) if count % members == 0]


def _mesh(mesh: dict[str, int]) -> str:
    said = ", ".join(f"{name}={size}" for name, size in mesh.items() if name != "replica" or size > 1)
    return f"mesh({said})"


def _shown(mesh: dict[str, int]) -> str:
    words = {"stage": "stages", "shard": "shards", "expert": "expert members", "tensor": "splits"}
    times = f"{mesh['replica']} x " if mesh["replica"] > 1 else ""
    zero = f", zero={mesh['zero']}" if "zero" in mesh else ""
    return times + " x ".join(f"{mesh[name]} {word}" for name, word in words.items() if name in mesh) + zero
