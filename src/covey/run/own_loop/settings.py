"""The user's optimizer, made again over a shard of the parameters, and led by the loop that holds the user's own."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from inspect import signature
from threading import current_thread, main_thread
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from covey.errors import PlanError
from covey.model.optimizers import Combined, check_gradients
from covey.model.replica import Replica
from covey.names import option
from covey.run.own_loop.trained import check_known
from covey.settings import LoopSettings

T = TypeVar("T")
Pairs = list[tuple[str, nn.Parameter]]


def replica_of(
    model: nn.Module | Sequence[nn.Module], optimizer: Optimizer | Sequence[Optimizer],
    check: Callable[[Optimizer], None] | None = None,
) -> Replica:  # fmt: skip
    """What a loop trains, as a role has it; `check` refuses an optimizer, or settings, that a strategy cannot do."""
    module, optimizers = one_model(model), _several(optimizer)
    for each in optimizers:
        check_gradients(each)
    whole = optimizers[0] if len(optimizers) == 1 else Combined(optimizers)
    settings = LoopSettings(whole, check)
    for each in optimizers:
        each.register_state_dict_pre_hook(partial(_warn_of_state, settings))
    replica = Replica(module, Remade(module, whole, settings), settings=settings)
    settings.gradients.watch(replica.layout.parameters, dict(module.named_parameters()))
    return replica


def _warn_of_state(settings: LoopSettings, optimizer: Optimizer) -> None:
    """What a loop writes down of its optimizer would lack momentum and the like, where other roles step."""
    if settings.reached and not settings.stepped and current_thread() is main_thread():
        warnings.warn(
            f"{type(optimizer).__name__}.state_dict() holds no momentum or other state in this process: with this "
            f"strategy, servers step the optimizer. Use {option('checkpoint')} to save it, or a strategy whose workers "
            "step (allreduce, local_sgd, easgd)",
            stacklevel=3,
        )


def one_model(model: nn.Module | Sequence[nn.Module]) -> nn.Module:
    """Several as one; the names of a compiled model's tensors are those of the model that was compiled."""
    models = [getattr(each, "_orig_mod", each) for each in _several(model)]
    return models[0] if len(models) == 1 else nn.ModuleList(models)


def _several(given: T | Sequence[T]) -> list[T]:
    return list(given) if isinstance(given, list | tuple) else [given]  # type: ignore[list-item]


class Remade:
    """Makes the user's optimizer for a shard: the same classes, groups and state, over the shard's parameters."""

    def __init__(self, module: nn.Module, optimizer: Optimizer, settings: LoopSettings) -> None:
        self.module, self.optimizer, self.settings = module, optimizer, settings
        names = {id(parameter): name for name, parameter in module.named_parameters()}
        self.groups_of: dict[str, list[int]] = {}  # several where optimizers share a parameter
        check_known([module], [optimizer])
        for number, group in enumerate(optimizer.param_groups):
            for parameter in group["params"]:
                if parameter.requires_grad:
                    self.groups_of.setdefault(names[id(parameter)], []).append(number)

    def __call__(self, pairs: Iterable[tuple[str, nn.Parameter]]) -> Optimizer:
        given = [(name, shard) for name, shard in pairs if name in self.groups_of]
        own = all(shard is self.module.get_parameter(name) for name, shard in given)
        if own and {name for name, _ in given} == self.groups_of.keys():
            self.settings.numbers = None
            return self.optimizer
        if not given:
            raise PlanError(
                "a server would hold only parameters that no optimizer has: use fewer servers, or say of those "
                "parameters that they need no gradient, with requires_grad_(False)"
            )
        self.settings.numbers = sorted({number for name, _ in given for number in self.groups_of[name]})
        if not isinstance(self.optimizer, Combined):
            return self.made(self.optimizer, 0, given)
        parts, first = list[Optimizer | None](), 0
        for part in self.optimizer.parts:
            assert part is not None, "the user's own are all there"
            inside = range(first, first + len(part.param_groups))
            mine = [(name, shard) for name, shard in given if any(number in inside for number in self.groups_of[name])]
            parts.append(self.made(part, first, mine) if mine else None)
            first += len(part.param_groups)
        return Combined(parts)

    def made(self, optimizer: Optimizer, first: int, given: Pairs) -> Optimizer:
        """One optimizer over some parameters, or slices of them; its groups are those from number `first` on."""
        groups = [
            {**group, "params": [shard for name, shard in given if number in self.groups_of[name]]}
            for number, group in enumerate(map(_settings_of, optimizer.param_groups), first)
        ]
        taken = signature(type(optimizer)).parameters
        usual = {key: value for key, value in optimizer.defaults.items() if key in taken}  # groups have all of them
        found = type(optimizer)([group for group in groups if group["params"]], **usual)
        for name, shard in given:
            whole = self.module.get_parameter(name)
            if optimizer.state.get(whole):
                found.state[shard] = _cut(type(optimizer).__name__, name, optimizer.state[whole], whole, shard)
        return found


def _settings_of(group: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key not in ("params", "param_names")}


def _cut(optimizer: str, name: str, kept: dict[str, Any], whole: nn.Parameter, shard: nn.Parameter) -> dict[str, Any]:
    """What an optimizer keeps of a parameter (loaded before covey.join), for a slice of it."""
    if shard is whole:
        return {key: value.clone() if isinstance(value, Tensor) else value for key, value in kept.items()}
    start = (shard.data_ptr() - whole.data_ptr()) // whole.element_size()
    found = {}
    for key, value in kept.items():
        if isinstance(value, Tensor) and value.shape == whole.shape and whole.numel() > 1:
            found[key] = value.detach().reshape(-1)[start : start + shard.numel()].clone()
        elif not isinstance(value, Tensor) or value.numel() == 1:
            found[key] = torch.clone(value) if isinstance(value, Tensor) else value
        else:
            raise PlanError(
                f"{optimizer} keeps {key!r} of {name} in a form that cannot be divided among servers: use 1 server, "
                "or a strategy whose workers step the optimizer, such as allreduce"
            )
    return found
