"""The user's optimizer, made again over a shard of the parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch import nn
from torch.optim import Optimizer


def remade(model: nn.Module, optimizer: Optimizer) -> Callable[[Iterable[tuple[str, nn.Parameter]]], Optimizer]:
    """How a server gets the user's optimizer for its shard: the same class and groups, over the shard's parameters."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    group_of = {names[id(p)]: index for index, group in enumerate(optimizer.param_groups) for p in group["params"]}
    settings = [
        {key: value for key, value in group.items() if key not in ("params", "param_names")}
        for group in optimizer.param_groups
    ]

    def make(pairs: Iterable[tuple[str, nn.Parameter]]) -> Optimizer:
        given = list(pairs)
        if all(parameter is model.get_parameter(name) for name, parameter in given) and len(given) == len(group_of):
            return optimizer
        groups = [{**group, "params": [p for n, p in given if group_of[n] == i]} for i, group in enumerate(settings)]
        return type(optimizer)([group for group in groups if group["params"]], **optimizer.defaults)

    return make
