"""Which model answers? A version of the store, or a file of weights with its task."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from covey.errors import PlanError
from covey.inference.schema import InputSchema
from covey.store.export.loaded import load_file, load_version, task_inputs, task_told
from covey.store.model_store import ModelStore
from covey.task import Task


class ModelPlace(msgspec.Struct, kw_only=True, frozen=True):
    """Where a model is: a version in a store, or a file."""

    store: str = ""
    version: str = ""
    file: str = ""
    task: str = ""  # FILE[:NAME]; of a version: another than its own

    @property
    def name(self) -> str:
        return self.version or Path(self.file).name

    def absolute(self) -> ModelPlace:
        """The same for a process in another folder."""
        store, file, task = (os.path.abspath(one) if one else "" for one in (self.store, self.file, self.task))
        return ModelPlace(store=store, version=self.version, file=file, task=task)

    def check(self) -> None:
        if self.file and not self.task:
            raise PlanError(f"{self.file} has weights only: name the task that builds their model, with --task FILE")


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model that computes batches."""

    name: str
    module: nn.Module
    task: Task

    def __call__(self, rows: Tensor) -> Tensor:
        """The answers to stacked inputs; refused if one of them has no finite numbers."""
        with torch.inference_mode():
            return self.checked(self.module(rows), len(rows))

    def checked(self, answers: Any, count: int) -> Tensor:
        """The answers to so many inputs, as a client can have them."""
        if not isinstance(answers, Tensor) or answers.shape[:1] != (count,):
            what = f"a tensor of {list(answers.shape)}" if isinstance(answers, Tensor) else type(answers).__name__
            raise PlanError(
                f"{self.name} answers {count} inputs with {what}: a model that is served returns one tensor, with "
                "one row for each input"
            )
        if answers.is_floating_point() and not bool(answers.isfinite().all()):
            raise ValueError("the model's answer has NaN or infinite numbers")
        return answers.cpu()

    def example(self) -> Tensor:
        """A few inputs of the training data."""
        return next(iter(task_inputs(self.task, 2, self.name)))

    def schema(self) -> InputSchema:
        """What clients may send; a model that cannot compute its own examples is refused."""
        example = self.example()
        self(example)
        return InputSchema.of(example)


def tell_of_code(place: ModelPlace, say: Callable[[str], None]) -> None:
    """Say which file will be imported that a store's index names; refused if others may have written the index."""
    if place.version:
        store = ModelStore(Path(place.store))
        task_told(store, store.named(place.version), place.task or None, say)


def load(place: ModelPlace, say: Callable[[str], None] = lambda line: None) -> ServedModel:
    """The model, ready to compute."""
    place.check()
    if place.file:
        module, task = load_file(Path(place.file), place.task, say)
        return ServedModel(place.name, module, task)
    store = ModelStore(Path(place.store))
    loaded = load_version(store, store.named(place.version), place.task or None, say)
    return ServedModel(place.name, loaded.module, loaded.task)
