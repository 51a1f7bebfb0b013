"""The values of a model's graph: what each is, until when it is alive, and whether it is changed in place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from covey.errors import PlanError
from covey.parallelism.trace import Inputs, Traced, undisturbed


@dataclass(frozen=True, slots=True)
class Value:
    """A value that one part of a model makes and a later one uses."""

    name: str
    bytes: int  # -1: it cannot travel
    differentiable: bool  # a gradient comes back for it
    whole_number: bool = False  # a size; it travels as a tensor of one number


def steps_of(graph: fx.Graph) -> list[fx.Node]:
    """The nodes that do something, in order."""
    return [node for node in graph.nodes if node.op.startswith("call_")]


def inputs_of(graph: fx.Graph) -> list[fx.Node]:
    return [node for node in graph.nodes if node.op == "placeholder"]


def outputs_of(graph: fx.Graph) -> list[fx.Node]:
    """What the model gives, in the order of its leaves."""
    end = graph.output_node()
    found = pytree.tree_leaves(end.args[0])
    if not all(isinstance(node, fx.Node) for node in found):
        raise PlanError(f"the model gives {end.args[0]}: a model that is cut may give tensors, and nothing else")
    return found


def alive(graph: fx.Graph, steps: Sequence[fx.Node], last: int) -> list[fx.Node]:
    """What was made up to this step, or given, and is used after it."""
    done = {*steps[: last + 1], *inputs_of(graph)}
    return [node for node in graph.nodes if node in done and any(user not in done for user in node.users)]


@dataclass(frozen=True, slots=True)
class Probed:
    """What every node gives, and after which steps a value is alive that is changed in place later on."""

    kinds: dict[fx.Node, Value]
    frozen: set[int]


def probe(found: Traced, inputs: Inputs, model: nn.Module) -> Probed:
    """Run the graph once, and look."""
    prober = _Prober(found)
    with undisturbed(model), torch.enable_grad():
        prober.run(*(x.clone() for x in inputs))
    return Probed(prober.kinds, prober.frozen)


class _Prober(fx.Interpreter):
    """Runs a graph, looks at every value, and notices when one is changed in place."""

    def __init__(self, found: Traced) -> None:
        super().__init__(fx.GraphModule(found.root, found.graph))
        self.named = {node.name: node for node in found.graph.nodes}
        self.numbers = {node.name: number for number, node in enumerate(steps_of(found.graph))}
        self.kinds: dict[fx.Node, Value] = {}
        self.frozen: set[int] = set()
        self.versions: dict[str, tuple[Tensor, int]] = {}

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if n.op in ("get_attr", "output"):
            return result
        self.kinds[self.named[n.name]] = _value(n.name, result)
        self._look(self.numbers.get(n.name, -1))
        if isinstance(result, Tensor):
            self.versions[n.name] = (result, result._version)
        return result

    def _look(self, now: int) -> None:
        for name, (tensor, version) in list(self.versions.items()):
            if tensor._version != version:
                self.frozen |= set(range(self.numbers.get(name, 0), now))
                self.versions[name] = (tensor, tensor._version)
            if all(self.numbers.get(user.name, now + 1) <= now for user in self.named[name].users):
                del self.versions[name]  # used up


def _value(name: str, result: object) -> Value:
    if isinstance(result, Tensor):
        return Value(name, result.numel() * result.element_size(), result.requires_grad)
    whole = isinstance(result, int) and not isinstance(result, bool)
    return Value(name, 8 if whole else -1, False, whole_number=whole)
