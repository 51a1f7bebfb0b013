"""A model as a chain of layers: where it may be cut, and which values would cross each cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from torch import Tensor, fx, nn

from covey.errors import PlanError
from covey.parallelism.marks import MARKS
from covey.parallelism.stages import Layer, Stage, Stages, Tie, stage_of, ties
from covey.parallelism.trace import Inputs, Traced, traced
from covey.parallelism.values import Probed, Value, alive, inputs_of, outputs_of, probe, steps_of


@dataclass(frozen=True, kw_only=True, eq=False)
class Chain:
    """A model's layers in order. Cutting it gives modules that share its very parameters."""

    model: nn.Module
    traced: Traced
    layers: tuple[Layer, ...]
    inputs: tuple[Value, ...]
    ties: tuple[Tie, ...] = ()  # weights that several layers use; their `stages` are layers

    @property
    def notes(self) -> list[str]:
        """What a person should know about how the model was looked at."""
        return self.traced.notes

    def stages(self, after: Sequence[int], tied: str = "refuse") -> Stages:
        """Cut after these layers. Weights in two stages are refused, or with tied="sum" listed: see `Stages.ties`."""
        many = len(self.layers)
        if list(after) != sorted(set(after)) or not all(0 <= cut < many - 1 for cut in after):
            raise PlanError(
                f"a chain of {many} layers can be cut after layers 0 to {many - 2}, each once and in order, "
                f"not after {list(after)}"
            )
        borders = [-1, *after, many - 1]
        runs = [range(first + 1, last + 1) for first, last in pairwise(borders)]
        return Stages.of(self.model, [self._stage(number, run) for number, run in enumerate(runs)], tied)

    def bound(self) -> frozenset[int]:
        """After which layers no cut may come, unless the gradients of tied weights are summed between stages."""
        return frozenset(cut for tie in self.ties for cut in range(min(tie.stages), max(tie.stages)))

    def rebuild(self, outputs: Sequence[Tensor]) -> Any:
        """The model's own output, as it would have given it, from what the last stage gives."""
        return self.traced.rebuild(outputs)

    def _stage(self, number: int, layers: range) -> Stage:
        takes = self.layers[layers[0] - 1].crossing if layers[0] else self.inputs
        return stage_of(self.model, self.traced, number, [self.layers[one] for one in layers], layers, takes)


def chain_of(model: nn.Module, inputs: Inputs, cuts: Sequence[str] = ()) -> Chain:
    """The layers of a model, found by running it on `inputs`.

    It may be cut after the modules named in `cuts`, else at its `cut_here` marks, else wherever it can be.
    """
    found = traced(model, inputs, cuts)
    steps, marked = _take_marks(found.graph)
    if not steps:
        raise PlanError(f"{type(model).__name__} has nothing that could be cut: it needs at least two modules or steps")
    probed = probe(found, inputs, model)
    if cuts:
        marked = {_end_of(name, steps) for name in cuts}
    layers = _layers(found.graph, steps, probed, marked - {len(steps) - 1})
    given = tuple(probed.kinds[node] for node in inputs_of(found.graph))
    whole = Chain(model=model, traced=found, layers=layers, inputs=given)
    shared = ties([whole._stage(number, range(number, number + 1)) for number in range(len(layers))])
    return Chain(model=model, traced=found, layers=layers, inputs=given, ties=shared)


def _take_marks(graph: fx.Graph) -> tuple[list[fx.Node], set[int]]:
    """The steps, and after which of them the user's marks lie; the marks themselves are taken out."""
    marked: set[int] = set()
    before = -1
    for node in list(graph.nodes):
        if node.target in MARKS:
            marked.add(before)
            node.replace_all_uses_with(node.all_input_nodes[0])
            graph.erase_node(node)
        elif node.op.startswith("call_"):
            before += 1
    return steps_of(graph), marked - {-1}


def _layers(graph: fx.Graph, steps: list[fx.Node], probed: Probed, marked: set[int]) -> tuple[Layer, ...]:
    """What lies between the places where the model can be cut, or between those that were marked."""
    ends = [cut for cut in range(len(steps) - 1) if _is_border(graph, steps, cut, probed)]
    if refused := sorted(marked - set(ends)):
        raise PlanError(
            f"the model cannot be cut after {_name(steps[refused[0]])}, where it is marked: a value is alive there "
            "that is neither a tensor nor a whole number, or that is changed in place later; mark it somewhat later"
        )
    if marked:
        ends = sorted(marked)
    layers, first = [], 0
    for last in ends:
        crossing = tuple(probed.kinds[node] for node in alive(graph, steps, last))
        layers.append(Layer(_name(_chief(steps[first : last + 1])), first, last, crossing))
        first = last + 1
    given = tuple(probed.kinds[node] for node in outputs_of(graph))
    return (*layers, Layer(_name(_chief(steps[first:])), first, len(steps) - 1, given))


def _is_border(graph: fx.Graph, steps: list[fx.Node], cut: int, probed: Probed) -> bool:
    """Whether a layer can end here: behind a tensor, where all that is alive can travel."""
    here = probed.kinds[steps[cut]]
    if cut in probed.frozen or here.bytes < 0 or here.whole_number:
        return False
    return all(probed.kinds[node].bytes >= 0 for node in alive(graph, steps, cut))


def _owners(node: fx.Node) -> list[str]:
    """The modules in whose forward a node lies, from the outside in."""
    if node.op == "call_module":
        names = str(node.target).split(".")
        return [".".join(names[: depth + 1]) for depth in range(len(names))]
    around = [str(path) for path, _ in (node.meta.get("nn_module_stack") or {}).values()]
    return [path for path in around if not path.startswith("_")]


def _name(node: fx.Node) -> str:
    owners = _owners(node)
    if node.op == "call_module":
        return owners[-1]
    return f"{owners[-1]}.{node.name}" if owners and owners[-1] else node.name


def _chief(nodes: Sequence[fx.Node]) -> fx.Node:
    """The node after which a layer is called: its last module, else its last node."""
    return next((node for node in reversed(nodes) if node.op == "call_module"), nodes[-1])


def _end_of(name: str, steps: Sequence[fx.Node]) -> int:
    inside = [number for number, node in enumerate(steps) if name in _owners(node)]
    if not inside:
        known = sorted({owner for node in steps for owner in _owners(node) if owner})
        raise PlanError(f"there is no module {name!r} to cut after; there are {', '.join(known)}")
    return inside[-1]
