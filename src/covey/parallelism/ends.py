"""What a task gives its model, and what it makes of the model's output: the two ends of a pipeline."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from inspect import Signature, signature
from typing import Any

from torch import Tensor, nn

from covey.errors import PlanError
from covey.parallelism.trace import Inputs, undisturbed
from covey.task import Task


class _Reached(Exception):
    """The model was called: no need to go on."""


class _Door(nn.Module):
    """Stands in for the model, and notes with what it is called."""

    def __init__(self, known: Signature) -> None:
        super().__init__()
        self.known, self.called = known, list[dict[str, Any]]()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self.called.append(dict(self.known.bind(*args, **kwargs).arguments))
        raise _Reached


def inputs_of(task: Task, model: nn.Module, batch: Any) -> Inputs:
    """The tensors with which the task calls its model on this batch."""
    with undisturbed(model):
        return Entrance(task, signature(model.forward))(batch)


@dataclass(frozen=True)
class Entrance:
    """The first end: what the task would give its model, without the model. `known` is how that is called."""

    task: Task
    known: Signature

    def __call__(self, batch: Any) -> Inputs:
        door = _Door(self.known)
        with suppress(_Reached):
            self.task.forward(door, batch)
        if not door.called:
            raise PlanError("the task does not call its model, so there is nothing to cut")
        return _tensors(door.called[0], list(self.known.parameters))


def _tensors(given: dict[str, Any], parameters: list[str]) -> Inputs:
    first = parameters[: len(given)]
    if list(given) != first or not all(isinstance(value, Tensor) for value in given.values()):
        shown = ", ".join(f"{name}: {type(value).__name__}" for name, value in given.items())
        raise PlanError(
            f"a model that is cut must be called with tensors for its first arguments, as in model(x), not ({shown})"
        )
    return tuple(given.values())


def loss_of(task: Task, batch: Any, output: Any, answering: Callable[[], None] = lambda: None) -> Tensor:
    """The task's loss on this batch, given what the model would answer; the model itself is not there.

    `answering` is called at the moment in which the model would have run.
    """
    return task.forward(_Answer(output, answering), batch)


class _Answer(nn.Module):
    """Stands in for the model: whatever it is asked, it has the answer."""

    def __init__(self, output: Any, answering: Callable[[], None]) -> None:
        super().__init__()
        self.output, self.answering, self.asked = output, answering, False

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if self.asked:
            raise PlanError("the task calls its model more than once for a batch: a cut model can be called once")
        self.asked = True
        self.answering()
        return self.output
