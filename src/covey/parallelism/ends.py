"""What a task gives its model, and what it makes of the model's output: the two ends of a pipeline."""

from __future__ import annotations

from inspect import signature
from typing import Any

from torch import Tensor, nn

from covey.errors import PlanError
from covey.parallelism.trace import Inputs, undisturbed
from covey.task import Task


class _Reached(Exception):
    """The model was called: no need to go on."""


def inputs_of(task: Task, model: nn.Module, batch: Any) -> Inputs:
    """The tensors with which the task calls its model on this batch."""
    called: list[dict[str, Any]] = []
    known = signature(model.forward)

    def note(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        called.append(dict(known.bind(*args, **kwargs).arguments))
        raise _Reached

    hook = model.register_forward_pre_hook(note, with_kwargs=True)
    try:
        with undisturbed(model):
            task.forward(model, batch)
    except _Reached:
        pass
    finally:
        hook.remove()
    if not called:
        raise PlanError("the task does not call its model, so there is nothing to cut")
    given = called[0]
    first = list(known.parameters)[: len(given)]
    if list(given) != first or not all(isinstance(value, Tensor) for value in given.values()):
        shown = ", ".join(f"{name}: {type(value).__name__}" for name, value in given.items())
        raise PlanError(
            f"a model that is cut must be called with tensors for its first arguments, as in model(x), not ({shown})"
        )
    return tuple(given.values())


def loss_of(task: Task, batch: Any, output: Any) -> Tensor:
    """The task's loss on this batch, given what the model would answer; the model itself is not there."""
    return task.forward(_Answer(output), batch)


class _Answer(nn.Module):
    """Stands in for the model: whatever it is asked, it has the answer."""

    def __init__(self, output: Any) -> None:
        super().__init__()
        self.output, self.asked = output, False

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self.asked:
            raise PlanError("the task calls its model more than once for a batch: a cut model can be called once")
        self.asked = True
        return self.output
