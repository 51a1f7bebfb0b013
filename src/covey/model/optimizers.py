"""The task's optimizer: how one is made, and what may be done with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from covey.errors import PlanError
from covey.faults import in_task
from covey.settings import check_rates

ELEMENTWISE = {
    torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.NAdam, torch.optim.RAdam, torch.optim.Adamax,
    torch.optim.Adagrad, torch.optim.Adadelta, torch.optim.RMSprop, torch.optim.Rprop, torch.optim.ASGD,
}  # fmt: skip
"""Optimizers that treat every number alone, so that one parameter may be split between servers."""

MakeOptimizer = Callable[[Iterable[tuple[str, nn.Parameter]]], Optimizer]


def elementwise(optimizer: Optimizer) -> bool:
    """Whether it treats every number alone."""
    return bool(getattr(optimizer, "elementwise", type(optimizer) in ELEMENTWISE))


def check_momentum(optimizer: Optimizer) -> None:
    """Refuse an optimizer to which no momentum can be given."""
    if any("momentum" not in group for group in optimizer.param_groups):
        raise PlanError(f"{type(optimizer).__name__} has no momentum to set: use torch.optim.SGD")


def made(make: MakeOptimizer, pairs: list[tuple[str, nn.Parameter]]) -> Optimizer:
    """A task's optimizer over these parameters, or slices of them."""
    if not pairs:
        raise PlanError("a server would hold no parameter: use fewer servers")
    with in_task("optimizer(params)"):
        optimizer = make(iter(pairs))
    if not isinstance(optimizer, Optimizer):
        raise PlanError(f"task.optimizer must return a torch Optimizer; it returned a {type(optimizer).__name__}")
    check_gradients(optimizer)
    given = {id(parameter) for _, parameter in pairs}
    if not any(id(parameter) in given for group in optimizer.param_groups for parameter in group["params"]):
        raise PlanError(
            "Task: the optimizer has none of the parameters that it was given, so it would train nothing: make it of "
            "its argument, as optimizer=lambda params: torch.optim.SGD(params, lr=0.1)"
        )
    check_rates(optimizer)
    return optimizer


def check_gradients(optimizer: Optimizer) -> None:
    """Refuse an optimizer that cannot step with one dense gradient."""
    if isinstance(optimizer, torch.optim.SparseAdam):
        raise PlanError(
            "torch.optim.SparseAdam takes only sparse gradients, and covey exchanges dense ones: use "
            "nn.Embedding(…, sparse=False) with SGD or Adam"
        )
    if isinstance(optimizer, torch.optim.LBFGS):
        raise PlanError(
            "torch.optim.LBFGS evaluates the loss several times in a step, and a step of covey has one gradient: use "
            "SGD or Adam"
        )


def check_loaded(optimizer: Optimizer, made: Sequence[Mapping[str, Any]]) -> None:
    """Refuse, with a ValueError, a loaded state with which no step can be done; `made` are its groups as made."""
    for group, fresh in zip(optimizer.param_groups, made, strict=True):
        for name, value in fresh.items():
            if name not in group or not _alike(group[name], value):
                raise ValueError(f"the optimizer has no usable setting {name!r}")
        if type(optimizer) not in ELEMENTWISE:  # others may keep anything of a parameter
            continue
        states = [(each, optimizer.state[each]) for each in group["params"] if each in optimizer.state]
        kinds = {frozenset((key, type(value)) for key, value in state.items()) for _, state in states if state}
        if len(kinds) > 1:
            raise ValueError("the optimizer has other things of one parameter than of others")
        if not all(_fits(parameter, state) for parameter, state in states):
            raise ValueError("the optimizer has numbers that do not have the shapes of its parameters")


def _alike(loaded: Any, made: Any) -> bool:
    """Whether a setting can stand for another: a number, or a tensor of one, for a number, and a pair for a pair."""
    if isinstance(made, tuple | list) and not any(isinstance(one, torch.Tensor) for one in made):
        return isinstance(loaded, tuple | list) and len(loaded) == len(made) and all(map(_alike, loaded, made))
    number = bool | int | float | torch.Tensor
    return not isinstance(made, number) or isinstance(loaded, number | None)


def _fits(parameter: torch.Tensor, state: Mapping[str, Any]) -> bool:
    """Whether this was kept of a parameter of this shape: of each of its numbers, or of all of them one."""
    for key, value in state.items():
        if isinstance(value, torch.Tensor):
            one = key == "step" or value.dim() == 0
            if value.shape != (torch.Size() if one else parameter.shape) or not (one or value.is_floating_point()):
                return False
        elif not isinstance(value, int | float | None):
            return False
    return True


def active_groups(optimizer: Optimizer) -> list[dict[str, Any]]:
    """The groups that the next step moves."""
    if not isinstance(optimizer, Combined):
        return optimizer.param_groups
    parts = [optimizer.parts[number] for number in optimizer.active]
    return [group for part in parts if part is not None for group in part.param_groups]


class Combined(Optimizer):
    """Several optimizers as one, whose groups are all of theirs in order; a step is one of those that are `active`.

    Where a role has no parameter of one of them, that one is None.
    """

    def __init__(self, parts: Sequence[Optimizer | None]) -> None:
        self.parts = tuple(parts)
        self.active = tuple(range(len(parts)))
        self.defaults = {}
        self.elementwise = all(elementwise(part) for part in self._there)

    @property
    def _there(self) -> list[Optimizer]:
        return [part for part in self.parts if part is not None]

    def only(self, optimizer: Optimizer | None) -> None:
        """From now on a step is one of this optimizer alone."""
        for number, part in enumerate(self.parts):
            if part is optimizer and part is not None:
                self.active = (number,)
                return
        which = "none was named" if optimizer is None else f"this {type(optimizer).__name__} is none of them"
        raise PlanError(
            f"covey.join was given {len(self.parts)} optimizers, so member.step(optimizer=...) says which of them "
            f"steps, and {which}"
        )

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]  # those of the parts
        return [group for part in self._there for group in part.param_groups]

    @property
    def state(self) -> _States:  # type: ignore[override]
        return _States(self._there)

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for number in self.active:
            if (part := self.parts[number]) is not None:
                part.step(closure)

    def zero_grad(self, set_to_none: bool = True) -> None:
        for part in self._there:
            part.zero_grad(set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        raise PlanError("a parameter group belongs to one of the optimizers: add it there, before covey.join")

    def state_dict(self) -> dict[str, Any]:
        return {"parts": [part.state_dict() if part else None for part in self.parts]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for part, state in zip(self.parts, state_dict["parts"], strict=True):
            if part is not None:
                part.load_state_dict(state)


class _States(MutableMapping[Any, Any]):
    """What several optimizers keep of their parameters, as if it were one's."""

    def __init__(self, parts: Sequence[Optimizer]) -> None:
        self._owners = {id(p): part for part in parts for group in part.param_groups for p in group["params"]}
        self._parts = parts

    def __getitem__(self, parameter: Any) -> Any:
        return self._owners[id(parameter)].state[parameter]

    def __setitem__(self, parameter: Any, kept: Any) -> None:
        self._owners[id(parameter)].state[parameter] = kept

    def __delitem__(self, parameter: Any) -> None:
        del self._owners[id(parameter)].state[parameter]

    def __contains__(self, parameter: object) -> bool:
        return id(parameter) in self._owners and parameter in self._owners[id(parameter)].state

    def __iter__(self) -> Iterator[Any]:
        return (parameter for part in self._parts for parameter in list(part.state))

    def __len__(self) -> int:
        return sum(len(part.state) for part in self._parts)
