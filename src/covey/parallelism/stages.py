"""Stages: the parts of a cut model, as modules that share its very parameters under their very names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _NormBase

from covey.errors import PlanError
from covey.parallelism.trace import Traced
from covey.parallelism.values import Value, alive, inputs_of, outputs_of, steps_of


@dataclass(frozen=True, slots=True)
class Layer:
    """What lies between two places at which a model may be cut."""

    name: str
    first: int  # steps of the graph
    last: int
    crossing: tuple[Value, ...]  # all that is alive behind it; behind the last layer what the model gives


@dataclass(frozen=True, kw_only=True, eq=False)
class Stage:
    """One part: `module(*takes)` gives a tuple of tensors, which the next stage takes."""

    number: int
    module: nn.Module
    layers: range
    takes: tuple[Value, ...]
    gives: tuple[Value, ...]

    def __call__(self, values: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        given: tuple[Tensor, ...] = self.module(*values)
        return given


@dataclass(frozen=True, slots=True)
class Tie:
    """One tensor that several stages use, and its name in each. The first of them owns it: it sums their gradients,
    updates the tensor, and lends it to the others for each step."""

    names: tuple[str, ...]
    stages: tuple[int, ...]

    def of(self, stage: int) -> str:
        """What it is called there."""
        return self.names[self.stages.index(stage)]

    def borrowed(self, stage: int) -> bool:
        """Whether this stage uses it and another one owns it."""
        return stage in self.stages[1:]


@dataclass(frozen=True, eq=False)
class Stages:
    """A whole cut: the stages in order, the weights that lie in several, and the parameters that no stage uses."""

    stages: tuple[Stage, ...]
    ties: tuple[Tie, ...]
    unused: tuple[str, ...]

    @staticmethod
    def of(model: nn.Module, stages: Sequence[Stage], tied: str) -> Stages:
        """Checked: what lies in two stages is refused, or listed."""
        if tied not in ("refuse", "sum"):
            raise PlanError(f"tied weights can be refused or summed: tied='refuse' or tied='sum', not {tied!r}")
        found = ties(stages)
        if found and tied == "refuse":
            raise PlanError(_refusal(found))
        _refuse_shared_state(model, stages)
        used = {id(p) for stage in stages for p in stage.module.parameters()}
        unused = tuple(name for name, p in model.named_parameters() if id(p) not in used)
        return Stages(tuple(stages), found, unused)

    def __iter__(self) -> Iterator[Stage]:
        return iter(self.stages)

    def __len__(self) -> int:
        return len(self.stages)

    def __getitem__(self, number: int) -> Stage:
        return self.stages[number]


def ties(stages: Sequence[Stage]) -> tuple[Tie, ...]:
    """The trained parameters that lie in more than one stage."""
    seen: dict[int, list[tuple[str, int]]] = {}
    for stage in stages:
        for name, parameter in stage.module.named_parameters():
            if parameter.requires_grad:
                seen.setdefault(id(parameter), []).append((name, stage.number))
    shared = [found for found in seen.values() if len(found) > 1]
    return tuple(Tie(tuple(name for name, _ in found), tuple(stage for _, stage in found)) for found in shared)


def stage_of(
    model: nn.Module, traced: Traced, number: int, run: Sequence[Layer], layers: range, takes: tuple[Value, ...]
) -> Stage:  # fmt: skip
    """The module of a run of layers."""
    whole, steps = traced.graph, steps_of(traced.graph)
    begin, end, gives = run[0].first, run[-1].last, run[-1].crossing
    graph = fx.Graph()
    known: dict[fx.Node, Any] = {}
    for node, value in zip(alive(whole, steps, begin - 1) if begin else inputs_of(whole), takes, strict=True):
        taken = graph.placeholder(node.name)
        known[node] = graph.call_function(_number, (taken,)) if value.whole_number else taken

    def local(node: fx.Node) -> Any:
        if node not in known:
            assert node.op == "get_attr", f"{node} is used before it is made"
            known[node] = graph.node_copy(node)
        return known[node]

    for node in steps[begin : end + 1]:
        known[node] = graph.node_copy(node, local)
    outgoing = outputs_of(whole) if end == len(steps) - 1 else alive(whole, steps, end)
    packed = [_packed(graph, local(node), value) for node, value in zip(outgoing, gives, strict=True)]
    graph.output(tuple(packed))
    module = fx.GraphModule(traced.root, graph, f"Stage{number}")
    module.training = model.training
    _forget_constants(module, model)
    return Stage(number=number, module=module, layers=layers, takes=takes, gives=gives)


def _packed(graph: fx.Graph, node: fx.Node, value: Value) -> fx.Node:
    return graph.call_function(torch.tensor, (node,)) if value.whole_number else node


def _number(packed: Tensor) -> int:
    """A size that came with the tensors."""
    return int(packed.item())


def _forget_constants(module: nn.Module, model: nn.Module) -> None:
    """What is no part of the model's state dict is none of a stage's: constants of its code, buffers not kept."""
    kept = model.state_dict().keys()
    for path, part in module.named_modules():
        for name in part._buffers:
            if (f"{path}.{name}" if path else name) not in kept:
                part._non_persistent_buffers_set.add(name)


def _refusal(found: tuple[Tie, ...]) -> str:
    each = "; ".join(
        f"{' = '.join(dict.fromkeys(tie.names))} in stages {', '.join(map(str, tie.stages))}" for tie in found
    )
    return f"weights are tied across stages: {each}. Cut elsewhere, or sum their gradients between stages (tied='sum')"


def _refuse_shared_state(model: nn.Module, stages: Sequence[Stage]) -> None:
    """A module that averages what it sees cannot be in two stages: each would see a part."""
    averages = {
        id(buffer): name
        for path, module in model.named_modules()
        if isinstance(module, _NormBase)
        for name, buffer in module.named_buffers(path)
    }
    seen: dict[int, int] = {}
    for stage in stages:
        for buffer in stage.module.buffers():
            first = seen.setdefault(id(buffer), stage.number)
            if id(buffer) in averages and first != stage.number:
                raise PlanError(
                    f"{averages[id(buffer)]} would be kept by stages {first} and {stage.number}, as its module is used "
                    "twice: cut so that both uses lie in one stage, or give each a module of its own"
                )
