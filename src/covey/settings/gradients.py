"""Which parameters have a gradient in a step: as in plain PyTorch, a step leaves those without one alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from torch import nn
from torch.optim import Optimizer

from covey.errors import PlanError


class GradientPresence:
    """The parameters of a loop's model, by their places in the flat vectors."""

    def __init__(self) -> None:
        self.places: dict[int, int] = {}
        self.names: dict[int, str] = {}

    def watch(self, placed: Mapping[str, nn.Parameter], names: Mapping[str, nn.Parameter]) -> None:
        """These parameters have a place, in this order; all of the model have names."""
        self.places = {id(parameter): place for place, parameter in enumerate(placed.values())}
        self.names = {id(parameter): name for name, parameter in names.items()}

    def absent(self, optimizer: Optimizer) -> tuple[int, ...]:
        """(After backward) The places of parameters that the optimizer would step and that have no gradient."""
        found, places = [], self.places
        for parameter in [one for one in _stepped(optimizer) if one.grad is None or id(one) not in places]:
            place = self.places.get(id(parameter))
            if place is None:
                if parameter.requires_grad and id(parameter) in self.names:
                    raise PlanError(unfrozen(self.names[id(parameter)]))
            elif parameter.grad is None:
                found.append(place)
        return tuple(sorted(found))


def _stepped(optimizer: Optimizer) -> list[nn.Parameter]:
    """What the next step moves: all parameters, or those of the optimizers that are active."""
    parts = getattr(optimizer, "parts", (optimizer,))
    active = [parts[number] for number in getattr(optimizer, "active", (0,))]
    return [parameter for part in active for group in part.param_groups for parameter in group["params"]]


@contextmanager
def skipping(parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    """Let a step pass by these: for its time they have no gradient."""
    skipped = [(parameter, parameter.grad) for parameter in parameters]
    for parameter, _ in skipped:
        parameter.grad = None
    try:
        yield
    finally:
        for parameter, grad in skipped:
            parameter.grad = grad


def common(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    """What both lack."""
    return one if one == other else tuple(sorted(set(one) & set(other)))


def unfrozen(name: str) -> str:
    return (
        f"{name} needed no gradient at covey.join (requires_grad was False) and needs one now: covey exchanges only "
        "what needed a gradient at covey.join. Call requires_grad_(True) before covey.join and requires_grad_(False) "
        "after it; from then on, freeze and unfreeze at any step"
    )
