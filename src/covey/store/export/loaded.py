"""A version as a module that computes: its task's model, with the weights of the store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file as load_weights
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset

from covey.errors import PlanError
from covey.faults import in_task
from covey.model import build
from covey.store.lineage import source_now
from covey.store.model_store import ModelStore
from covey.store.task_code import task_of
from covey.store.versions import ModelVersion
from covey.task import Task, load_task

BATCH = 32  # samples of an example


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A version that computes, and the task that it was trained for."""

    version: ModelVersion
    module: nn.Module  # in evaluation mode, on the CPU
    task: Task

    def inputs(self, samples: int) -> Iterator[Tensor]:
        """What the module is called with, batch by batch, for the first samples of the training data."""
        return task_inputs(self.task, samples, f"{self.version.text}: a model that is exported")

    def example(self) -> Tensor:
        """A batch of at least two samples, so that no size is taken for a constant."""
        found = next(self.inputs(BATCH))
        return found if len(found) > 1 else torch.cat([found, found])


def task_inputs(task: Task, samples: int, model: str) -> Iterator[Tensor]:
    """What the model of a task is called with, batch by batch, for its first samples; `model` names it in errors."""
    for batch in islice(_batches(task, samples), -(-samples // BATCH)):
        found = batch[0] if isinstance(batch, tuple | list) and batch else batch
        if not isinstance(found, Tensor):
            raise PlanError(
                f"{model} is called with one tensor, and a batch of its task begins with a {type(found).__name__}"
            )
        yield found.cpu()


def load_file(file: Path, task: str, say: Callable[[str], None] = lambda line: None) -> tuple[nn.Module, Task]:
    """The model of a task with the weights of a safetensors file, in evaluation mode, and that task."""
    found = load_task(task, say)
    module = build.model(found, 0).cpu()
    try:
        weights = load_weights(file)
    except (OSError, SafetensorError) as error:
        raise PlanError(f"{file} cannot be read as safetensors: {error}") from None
    _fill(module, weights, f"{file} and the model of {task}")
    return module.eval(), found


def load_version(
    store: ModelStore, version: ModelVersion, task: str | None = None, say: Callable[[str], None] = lambda line: None
) -> LoadedModel:
    """Build the model of a version's task, or of another one, and give it the version's weights."""
    where = task_told(store, version, task, say)
    found = load_task(where, say)
    module = build.model(found, version.origin.run.seed).cpu()
    _fill(module, store.weights(version), f"{version.text} and the model of {where}")
    return LoadedModel(version, module.eval(), found)


def task_told(store: ModelStore, version: ModelVersion, task: str | None, say: Callable[[str], None]) -> str:
    """The task that builds the model; `say` is told of one that the index names, before it is imported."""
    where = task_of(store, version, task)
    if not task:
        if changed := source_now(version):
            say(f"{where} is {changed}: the model is built by it as it is now")
        say(f"importing {where}, which the index of {store.folder} names for {version.text}")
    return where


def _fill(module: nn.Module, weights: Mapping[str, Tensor], both: str) -> None:
    """Give a module these weights; refused, with the first difference, where they are of another model."""
    mine = module.state_dict()
    for name in [*weights, *mine]:
        if name not in mine or name not in weights:
            where = "version" if name in weights else "model"
            raise PlanError(f"{both} are different models: only the {where} has {name!r}")
        if mine[name].shape != weights[name].shape:
            shapes = f"{tuple(weights[name].shape)} and {tuple(mine[name].shape)}"
            raise PlanError(f"{both} are different models: {name!r} has the shapes {shapes}")
    module.load_state_dict(dict(weights))


def _batches(task: Task, samples: int) -> Iterator[Any]:
    data: Any = build.data_of(task)
    columns = data.tensors if type(data) is TensorDataset else data
    if isinstance(columns, tuple):
        yield from zip(*(column[:samples].split(BATCH) for column in columns), strict=True)
        return
    chosen = data if isinstance(data, IterableDataset) else Subset(data, range(min(samples, len(data))))
    with in_task("data"):
        yield from DataLoader(chosen, batch_size=BATCH, collate_fn=task.collate_fn, generator=torch.Generator())


def needed_for_export(module: str, flag: str) -> Any:
    """An optional package, or how to install it."""
    extra = "mlflow" if module.startswith("mlflow") else "export"
    try:
        return import_module(module)
    except ImportError as error:
        raise PlanError(f"{flag} needs a package: pip install 'covey[{extra}]' ({error})") from None


@contextmanager
def exporting(version: ModelVersion, what: str) -> Iterator[None]:
    """What another library raises over a model becomes one sentence."""
    try:
        yield
    except (PlanError, KeyboardInterrupt):
        raise
    except Exception as error:
        first = next((line for line in str(error).splitlines() if line.strip()), "")
        why = f"{type(error).__name__}: {first[:300]}"
        raise PlanError(f"{version.text} cannot be exported by {what}: {why}") from error
