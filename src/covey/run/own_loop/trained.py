"""What does a loop train? Its models, its optimizers, and which of these steps now."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from covey.errors import PlanError
from covey.settings import check_rates
from covey.settings.gradients import unfrozen


def models_and_optimizers(
    model: nn.Module | Sequence[nn.Module], optimizer: Optimizer | Sequence[Optimizer]
) -> tuple[tuple[nn.Module, ...], tuple[Optimizer, ...]]:
    """All that covey.join was given; refused where nothing could be trained, or something else exchanges gradients."""
    models = (model,) if isinstance(model, nn.Module) else tuple(model)
    optimizers = (optimizer,) if isinstance(optimizer, Optimizer) else tuple(optimizer)
    if not models or not optimizers:
        raise PlanError("covey.join: model and optimizer must be at least one each, and a list that was given is empty")
    if any(isinstance(each, DistributedDataParallel) for each in models):
        raise PlanError(
            "the model is wrapped in DistributedDataParallel, which exchanges gradients itself: give covey.join "
            "the plain model, and the strategy does that"
        )
    check_known(models, optimizers)
    return models, optimizers


def check_known(models: Sequence[nn.Module], optimizers: Sequence[Optimizer]) -> None:
    """Refuse an optimizer of something that no model has: nobody would exchange it."""
    known = {id(parameter) for model in models for parameter in model.parameters()}
    for optimizer in optimizers:
        for number, group in enumerate(optimizer.param_groups):
            for parameter in group["params"]:
                if id(parameter) not in known:
                    shape = f"of shape {' x '.join(map(str, parameter.shape))}" if parameter.dim() else "of one number"
                    raise PlanError(
                        f"parameter group {number} of the optimizer has a parameter {shape} that the model does not "
                        "have: give covey.join the model that the optimizer was made for, or all of them; put a bare "
                        "nn.Parameter into an nn.Module, and give covey.join that too, covey.join([model, other], …)"
                    )


def chosen_optimizer(optimizers: Sequence[Optimizer], named: Optimizer | None) -> Optimizer:
    """The one that steps now: the only one, or the one that the loop names."""
    if named is None and len(optimizers) > 1:
        raise PlanError("the run has several optimizers: say which one steps now, member.step(optimizer=…)")
    if named is not None and not any(named is each for each in optimizers):
        raise PlanError("member.step(optimizer=…): this optimizer was not given to covey.join")
    return named or optimizers[0]


def all_parameters(optimizers: Sequence[Optimizer]) -> Iterator[nn.Parameter]:
    """All that one of them steps."""
    return (parameter for optimizer in optimizers for parameter in parameters_of(optimizer))


def parameters_of(optimizer: Optimizer) -> list[nn.Parameter]:
    """All that it steps."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def frozen_of(models: Sequence[nn.Module]) -> list[tuple[str, nn.Parameter]]:
    """Parameters that need no gradient now, with their names."""
    named = (pair for model in models for pair in model.named_parameters())
    return [(name, parameter) for name, parameter in named if not parameter.requires_grad]


def check_step(optimizer: Optimizer, frozen: list[tuple[str, nn.Parameter]]) -> None:
    """(Alone) Refuse what a run of several workers refuses: unusable rates, and to step what was frozen at join."""
    check_rates(optimizer)
    if thawed := {id(parameter): name for name, parameter in frozen if parameter.requires_grad}:
        for parameter in parameters_of(optimizer):
            if id(parameter) in thawed:
                raise PlanError(unfrozen(thawed[id(parameter)]))


def note_steps(optimizers: Sequence[Optimizer]) -> None:
    """Let no scheduler warn that no step came before it: servers may step, or the run goes on from earlier steps."""
    for each in optimizers:
        each._opt_called = True  # type: ignore[attr-defined]


class WaitingGradients:
    """Of a loop that may step several optimizers in turn after one backward."""

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        self._optimizers = optimizers
        self._aside: list[tuple[nn.Parameter, Tensor | None]] = []
        self._left: list[tuple[nn.Parameter, Tensor, int]] = []  # with the gradient's version

    def set_aside(self, chosen: Optimizer) -> None:
        """(Before a step) Take away what other optimizers step."""
        others = [each for each in self._optimizers if each is not chosen]
        if not others:
            return
        mine = {id(parameter) for parameter in parameters_of(chosen)}
        self._aside = [(p, p.grad) for each in others for p in parameters_of(each) if id(p) not in mine]
        for parameter, _ in self._aside:
            parameter.grad = None

    def give_back(self) -> None:
        """(After it)"""
        for parameter, grad in self._aside:
            parameter.grad = grad
        self._left = [(one, grad, grad._version) for one, grad in self._aside if grad is not None]
        self._aside = []

    def used(self, chosen: Optimizer) -> bool:
        """Whether an optimizer is about to step on gradients that have waited."""
        mine = {id(parameter) for parameter in parameters_of(chosen)}
        return any(id(one) in mine and one.grad is grad and grad._version == was for one, grad, was in self._left)

    def state(self) -> dict[str, Tensor]:
        """(In a step) Those that wait, by the parameter's number."""
        numbers = {id(parameter): str(number) for number, parameter in enumerate(self._parameters())}
        return {numbers[id(one)]: grad.detach().clone() for one, grad in self._aside if grad is not None}

    def restore(self, kept: Mapping[str, Tensor]) -> None:
        """(When the same batch has been gone through again) What it gave now is of newer weights."""
        parameters = self._parameters()
        for number, grad in kept.items():
            parameters[int(number)].grad = grad.to(parameters[int(number)]).view_as(parameters[int(number)])

    def _parameters(self) -> list[nn.Parameter]:
        return [parameter for optimizer in self._optimizers for parameter in parameters_of(optimizer)]
