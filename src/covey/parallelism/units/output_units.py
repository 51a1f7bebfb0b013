"""The fully connected end of a model: where it begins, and how its layers are cut into slices of output units.

A worker that has the slice `chunk(units, workers, rank)` of a layer needs all that goes into the layer, and makes its
own units of what comes out. Weights are cut along their rows, so that a slice lies in one piece of the whole model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from covey.errors import PlanError
from covey.parallelism.chain import Chain
from covey.parallelism.stages import Stage
from covey.parallelism.values import outputs_of, steps_of
from covey.vector import chunk

ELEMENTWISE_MODULES = {
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Tanh, nn.Sigmoid,
    nn.LogSigmoid, nn.Softplus, nn.Softsign, nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid, nn.Identity, nn.Dropout,
}  # fmt: skip
ELEMENTWISE_FUNCTIONS = {
    F.relu, torch.relu, F.relu6, F.leaky_relu, F.elu, F.selu, F.celu, F.gelu, F.silu, F.mish, F.tanh, torch.tanh,
    F.sigmoid, torch.sigmoid, F.dropout,
}  # fmt: skip
ELEMENTWISE_METHODS = {"relu", "relu_", "tanh", "sigmoid"}
"""What treats every number alone, so that it can be done with a slice; nn.PReLU has a weight, so it cannot."""

Change = Callable[[Tensor], Tensor]


@dataclass(eq=False)
class DenseLayer:
    """A fully connected layer, and what is done with each of its outputs alone."""

    name: str
    layer: nn.Linear
    units: int  # of the whole layer
    after: tuple[Change, ...] = ()

    def __call__(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(x)
        for change in self.after:
            y = change(y)
        return y

    @property
    def names(self) -> list[str]:
        """Of its parameters, as the model calls them."""
        return [f"{self.name}.{key}" if self.name else key for key, _ in self.layer.named_parameters()]

    def keep(self, workers: int, rank: int) -> None:
        """Have only one worker's slice from now on."""
        first, stop = chunk(self.units, workers, rank)
        for key, whole in list(self.layer.named_parameters()):
            mine = whole.detach()[first:stop].clone()
            setattr(self.layer, key, nn.Parameter(mine, requires_grad=whole.requires_grad))
        self.layer.out_features = stop - first


@dataclass(frozen=True, eq=False)
class SplitModel:
    """A model in three: up to its fully connected end, that end block by block, and what follows without weights."""

    chain: Chain
    front: Stage | None  # None: the first block takes what the model is given
    middle: Stage | None  # the blocks as one, of the whole model
    blocks: tuple[DenseLayer, ...]
    head: Stage | None
    returns: bool  # whether the front learns from errors

    @property
    def names(self) -> set[str]:
        """Of the parameters that are cut."""
        return {name for block in self.blocks for name in block.names}


def fully_connected(strategy: str, chain: Chain) -> SplitModel:
    """The longest run of fully connected layers at the end of a model; refused where there is none."""
    if type(layer := chain.model) is nn.Linear and not _hooked(layer):  # its own forward is no module
        return SplitModel(chain, None, chain.stages([])[0], (DenseLayer("", layer, layer.out_features),), None, False)
    steps = steps_of(chain.traced.graph)
    able = _Able(chain, steps)
    last = next((place for place in reversed(range(len(steps))) if able.has_numbers(steps[place])), 0)
    until = next(number for number, layer in enumerate(chain.layers, 1) if layer.last >= last)
    end = chain.layers[until - 1].last
    first: int | None = None
    for place in reversed(range(end + 1)):
        if not able.alone(place, end) or not (able.linear(steps[place]) or able.elementwise(steps[place])):
            break
        if able.linear(steps[place]) and able.begins(place):
            first = place
    if first is None or not able.linear(steps[last]) or not able.ends(until):
        raise PlanError(_refusal(strategy, chain, steps[last]))
    number = [layer.first for layer in chain.layers].index(first)
    borders = [border for border in (number - 1, until - 1) if 0 <= border < len(chain.layers) - 1]
    stages = list(chain.stages(borders))
    crossing = chain.layers[number - 1].crossing if number else chain.inputs
    return SplitModel(
        chain, stages[0] if number else None, stages[bool(number)], tuple(able.blocks(steps[first : end + 1])),
        stages[-1] if until < len(chain.layers) else None, crossing[0].differentiable,
    )  # fmt: skip


class _Able:
    """What may be cut into units, of one model."""

    def __init__(self, chain: Chain, steps: Sequence[fx.Node]) -> None:
        self.chain, self.steps, self.root = chain, steps, chain.traced.root
        modules = list(chain.model.modules())
        self.owners = Counter(id(p) for module in modules for p in module._parameters.values() if p is not None)
        self.uses = Counter(id(self.module(step)) for step in steps if step.op == "call_module")
        self.starts = {layer.first: number for number, layer in enumerate(chain.layers)}

    def module(self, step: fx.Node) -> nn.Module:
        return self.root.get_submodule(str(step.target))

    def has_numbers(self, step: fx.Node) -> bool:
        """Whether a step has weights or statistics."""
        if any(node.op == "get_attr" for node in step.all_input_nodes):
            return True
        return step.op == "call_module" and bool(self.module(step).state_dict())

    def linear(self, step: fx.Node) -> bool:
        """Whether it is a plain layer with weights of its own, used once."""
        if step.op != "call_module" or type(module := self.module(step)) is not nn.Linear or _hooked(module):
            return False
        return self.uses[id(module)] == 1 and all(self.owners[id(p)] == 1 for p in module.parameters())

    def elementwise(self, step: fx.Node) -> bool:
        if step.op == "call_module":
            return type(self.module(step)) in ELEMENTWISE_MODULES and not _hooked(self.module(step))
        return step.target in (ELEMENTWISE_FUNCTIONS if step.op == "call_function" else ELEMENTWISE_METHODS)

    def alone(self, place: int, end: int) -> bool:
        """Whether it takes one tensor, the first of its arguments, and gives it to the next step and to no other."""
        step = self.steps[place]
        if step.all_input_nodes != list(step.args[:1]):
            return False
        return place == end or list(step.users) == [self.steps[place + 1]]

    def begins(self, place: int) -> bool:
        """Whether the model can be cut before this step, where one tensor crosses."""
        number = self.starts.get(place)
        if number is None:
            return False
        return len(self.chain.layers[number - 1].crossing if number else self.chain.inputs) == 1

    def ends(self, until: int) -> bool:
        """Whether one tensor crosses the end of this layer, or leaves the model there."""
        if until == len(self.chain.layers):
            return outputs_of(self.chain.traced.graph) == [self.steps[-1]]
        return len(self.chain.layers[until - 1].crossing) == 1

    def blocks(self, steps: Sequence[fx.Node]) -> list[DenseLayer]:
        found: list[DenseLayer] = []
        for step in steps:
            module = self.module(step) if step.op == "call_module" else None
            if isinstance(module, nn.Linear):
                found.append(DenseLayer(str(step.target), module, module.out_features))
            else:
                found[-1].after += (module or _change(step),)
        return found


def _change(step: fx.Node) -> Change:
    """A function or a method of the graph, as something that changes a tensor."""
    function: Any = step.target if step.op == "call_function" else getattr(torch.Tensor, str(step.target))
    return partial(_called, function, step.args[1:], step.kwargs)


def _called(function: Callable[..., Tensor], more: Sequence[Any], named: dict[str, Any], x: Tensor) -> Tensor:
    return function(x, *more, **named)


def _hooked(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks or module._backward_hooks)


def _refusal(strategy: str, chain: Chain, last: fx.Node) -> str:
    what = f"it ends with {last.target if last.op == 'call_module' else last.name}"
    return (
        f"{strategy} divides the fully connected layers at the end of a model, and {type(chain.model).__name__} has "
        f"none that can be ({what}): it needs nn.Linear modules with weights of their own, and between them only what "
        "treats every number alone (ReLU, Tanh, Dropout...). Use allreduce, or poseidon for linear layers elsewhere"
    )
