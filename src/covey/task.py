"""What the user hands in: a model, its data, an optimizer, a loss, and how to score it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from hashlib import sha256
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, SupportsFloat

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from covey.errors import PlanError
from covey.faults import in_task
from covey.reminders import reminded

TASK_MODULE = "covey_task_"  # how the modules are called that `load_task` makes of files
HISTORY = ("seconds", "samples", "bytes")  # names that the lines of a result's history have for themselves
Data = Dataset[Any] | tuple[Tensor, ...]
Score = Callable[[nn.Module], Mapping[str, float]]


@dataclass(frozen=True, kw_only=True, eq=False)
class Task:
    """What to train, on which data, and how to score it.

    Args:
        model: A function that builds the module; each role calls it, and all start from the same weights.
        data: A data set with `len(data)` and `data[i]`, or a tuple of tensors. Only `covey.spark.fit` needs none.
        optimizer: A function from (name, parameter) pairs to a torch optimizer.
        loss: A function `loss(model(x), y)`, for batches that are pairs.
        step: A function `step(model, batch)` that returns the loss, for all other batches; in place of `loss`.
        batch_size: The number of samples in a batch of one worker.
        accumulate: The number of such batches in one step of a worker, whose gradients are added up.
        evaluate: A function from the model to its metrics, such as `covey.accuracy(data)`.
        better: For each metric, whether "higher" or "lower" is better; accuracy, loss and error are known.
        rate: A function from progress (0 to 1) to a factor on the learning rate.
        clip_norm: The largest norm of a gradient that a step uses; larger ones are scaled down.
        loaders: The number of processes that load samples, for data that is not tensors.
        warm: Whether real runs do and undo two steps before the clock starts; False for models with state of their own.
        callbacks: Objects of subclasses of `covey.Callback`, which hear of each run of the task.

    >>> import covey, torch
    >>> from torch import nn
    >>> task = covey.Task(
    ...     model=lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10)),
    ...     data=covey.data.digits(train=True),
    ...     optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
    ...     loss=nn.functional.cross_entropy,
    ... )
    """

    model: Callable[[], nn.Module]
    data: Data | None = None
    optimizer: Callable[[Iterable[tuple[str, nn.Parameter]]], torch.optim.Optimizer]
    loss: Callable[..., Tensor] | None = None
    step: Callable[[nn.Module, Any], Tensor] | None = None
    batch_size: int = 32
    accumulate: int = 1
    evaluate: Score | None = None
    better: Mapping[str, Literal["higher", "lower"]] = field(default_factory=dict)
    rate: Callable[[float], float] | None = None
    clip_norm: float | None = None
    loaders: int = 0
    warm: bool = True
    callbacks: Sequence[Any] = ()

    def __post_init__(self) -> None:
        self._check_factories()
        self._check_loss()
        if self.data is not None:
            check_data(self.data)
        for name in ("loss", "step", "evaluate", "rate"):
            if getattr(self, name) is not None:
                _check_callable(name, getattr(self, name))
        _check_better(self.better)
        _check_count("batch_size", self.batch_size, least=1)
        _check_count("accumulate", self.accumulate, least=1)
        _check_count("loaders", self.loaders, least=0)
        if not isinstance(self.warm, bool):
            raise PlanError(f"Task: warm must be True or False, not {self.warm!r}")
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise PlanError(f"Task: clip_norm must be more than 0, not {self.clip_norm!r}; None clips nothing")

    @property
    def step_size(self) -> int:
        """Samples of one step of a worker."""
        return self.batch_size * self.accumulate

    def forward(self, model: nn.Module, batch: Any) -> Tensor:
        """The loss of one batch."""
        if self.step is not None:
            with in_task("step(model, batch)", lambda: f"batch is {_describe(batch)}, {_home(model)}"):
                loss = self.step(model, batch)
            return _scalar("step(model, batch)", loss)
        assert self.loss is not None, "a task has a loss or a step"
        if not isinstance(batch, tuple | list) or len(batch) != 2:
            raise PlanError(
                f"Task: loss(model(x), y) needs batches that are pairs (x, y), but the data gives {_describe(batch)}; "
                "for other batches give step=lambda model, batch: … instead of loss"
            )
        x, y = batch
        with in_task("model(x)", lambda: f"x is {_describe(x)}, {_home(model)}"):
            output = model(x)
        with in_task("loss(model(x), y)", lambda: f"model(x) is {_describe(output)}, y is {_describe(y)}"):
            loss = self.loss(output, y)
        return _scalar("loss(model(x), y)", loss)

    def _check_factories(self) -> None:
        if isinstance(self.model, nn.Module):
            made = f"lambda: {type(self.model).__name__}(…)"
            raise PlanError(f"Task: model must build a fresh model for each worker, so give a function: model={made}")
        if isinstance(self.optimizer, torch.optim.Optimizer):
            made = f"lambda params: torch.optim.{type(self.optimizer).__name__}(params, …)"
            raise PlanError(f"Task: optimizer must be a function of the parameters: optimizer={made}")
        _check_callable("model", self.model)
        _check_callable("optimizer", self.optimizer)

    def _check_loss(self) -> None:
        if (self.loss is None) == (self.step is None):
            given = "neither was" if self.loss is None else "both were"
            raise PlanError(f"Task: give either loss=f(output, y) or step=f(model, batch); {given} given")
        if isinstance(self.loss, type):
            raise PlanError(f"Task: loss is a class; give an instance of it: loss={self.loss.__name__}()")


def load_task(where: str, say: Callable[[str], None] | None = None) -> Task:
    """The Task of `path/file.py` or `path/file.py:NAME`; NAME is `task` unless given. `say` hears if it takes long."""
    path, name = _split(where)
    with reminded(say, f"importing {path}"):
        module = import_file(path)
    found = getattr(module, name, None)
    if isinstance(found, Task):
        return found
    tasks = [key for key, value in vars(module).items() if isinstance(value, Task)]
    hint = f"it has {', '.join(f'{path}:{key}' for key in tasks)}" if tasks else f"write {name} = covey.Task(…) in it"
    what = f"no {name!r}" if not hasattr(module, name) else f"{name!r} as {_describe(found)}, not as a covey.Task"
    raise PlanError(f"{path} has {what}; {hint}")


def check_data(data: Any, owner: str = "Task") -> int:
    """The number of samples, after making sure that each can be asked for by its number."""
    if isinstance(data, IterableDataset | DataLoader) or not _is_map_style(data):
        raise PlanError(
            f"{owner}: data must be a data set with len(data) and data[i], or a tuple of tensors, "
            f"not {_describe(data)}; a DataLoader holds such a data set in .dataset, and one tensor goes in as (x,)"
        )
    sizes = [len(column) for column in data] if isinstance(data, tuple) else [len(data), len(data)]
    if len(set(sizes)) > 1 and not isinstance(data, tuple):
        raise PlanError(
            f"{owner}: len(data) gave {sizes[0]}, then {sizes[1]}; a data set must keep its length: finish downloading "
            "or filtering it before training starts"
        )
    if len(set(sizes)) > 1:
        raise PlanError(f"{owner}: the tensors of data must have the same length, not {' and '.join(map(str, sizes))}")
    if 0 in sizes:
        raise PlanError(f"{owner}: data is empty; it needs at least one sample")
    return int(sizes[0])


def _is_map_style(data: Any) -> bool:
    if isinstance(data, tuple):
        return bool(data) and all(isinstance(column, Tensor) and column.dim() > 0 for column in data)
    numbered = hasattr(data, "__len__") and hasattr(data, "__getitem__")
    return numbered and not isinstance(data, Tensor | Mapping | str | bytes)


def task_file(where: str) -> Path:
    """The file in `path/file.py` or `path/file.py:NAME`, on a host that may not have it; a path may hold colons."""
    path, colon, name = where.rpartition(":")
    return Path(path) if colon and name.isidentifier() and not Path(where).is_file() else Path(where)


def _split(where: str) -> tuple[Path, str]:
    path, colon, name = where.rpartition(":")
    if not colon or Path(where).is_file():
        path, name = where, "task"
    if not name.isidentifier():
        raise PlanError(f"{where!r}: after the colon goes the name of a Task in the file, as in {path}:task")
    return Path(path), name


def import_file(path: Path) -> ModuleType:
    """Run the file as a module of its own; what it raises goes to the user as it is."""
    if not path.is_file():
        near = get_close_matches(path.name, [file.name for file in path.parent.glob("*.py")], n=1)
        hint = f"did you mean {path.parent / near[0]}?" if near else "give a Python file, as in train.py:task"
        raise PlanError(f"there is no file {path}; {hint}")
    path = path.resolve()
    # The same name in every process of a run, and never that of a module that the file itself imports.
    name = f"{TASK_MODULE}{path.stem}_{sha256(str(path).encode()).hexdigest()[:8]}"
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))  # it stays, for what the user's functions import later
    spec = spec_from_loader(name, SourceFileLoader(name, str(path)))
    assert spec is not None and spec.loader is not None, "a source file always has a loader"
    module = sys.modules[name] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if not isinstance(error, SystemExit):
            raise
        hint = "put what runs it as a program under if __name__ == '__main__':"
        raise PlanError(f"{path} called sys.exit({error.code!r}) while it was imported; {hint}") from None
    return module


def _check_callable(name: str, value: object) -> None:
    if not callable(value):
        raise PlanError(f"Task: {name} must be a function, not {_describe(value)}")


def _check_better(better: object) -> None:
    if not isinstance(better, Mapping) or any(way not in ("higher", "lower") for way in better.values()):
        raise PlanError(
            f"Task: better must say of metrics whether higher or lower is better, as {{'perplexity': 'lower'}}, "
            f"not {better!r:.80}"
        )


def _check_count(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise PlanError(f"Task: {name} must be a whole number of at least {least}, not {value!r}")


def _scalar(source: str, loss: object) -> Tensor:
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        raise PlanError(f"Task: {source} must give one number, such as a mean over the batch, not {_describe(loss)}")
    if torch.is_grad_enabled() and not loss.requires_grad:
        raise PlanError(
            f"Task: {source} gave a number without a gradient: it must come from the model's parameters by operations "
            "of torch, without .detach(), .item() or torch.no_grad() on the way"
        )
    return loss


def scores(found: object) -> dict[str, float]:
    """What evaluate(model) gave, as numbers by their names."""
    if not isinstance(found, Mapping) or not all(isinstance(name, str) for name in found):
        raise PlanError(
            f"Task: evaluate(model) must give numbers by name, such as {{'accuracy': 0.9}}, not {_describe(found)}"
        )
    for name, value in found.items():
        if name in HISTORY:
            raise PlanError(f"Task: evaluate(model) gives {name!r}, which every line of the history has: rename it")
        if not isinstance(value, int | float | Tensor | SupportsFloat) or getattr(value, "numel", lambda: 1)() != 1:
            raise PlanError(f"Task: evaluate(model) must give one number for {name!r}, not {_describe(value)}")
    return {name: float(value) for name, value in found.items()}


def _home(model: nn.Module) -> str:
    """Where the model's parameters are."""
    return f"the model is on {next((str(p.device) for p in model.parameters()), 'no device')}"


def _describe(value: object) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}" + (f" on {value.device}" if value.device.type != "cpu" else "")
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    return f"{type(value).__name__} {value!r:.60}" if isinstance(value, int | float | str) else type(value).__name__
