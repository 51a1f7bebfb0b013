"""What the user hands in: a model, its data, an optimizer, a loss, and how to score it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, SupportsFloat

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from covey.errors import PlanError
from covey.faults import in_task
from covey.task.arguments import check_call, check_fields, describe
from covey.task.data import (
    MOST,
    Data,
    Loading,
    check_data,
    check_loader,
    check_stream_settings,
    check_transform,
    order_of,
    settings_of,
)  # fmt: skip
from covey.task.device import check_device
from covey.task.private import PrivateSgd
from covey.task.schedule import MakeScheduler, check_scheduler

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
HISTORY = ("seconds", "samples", "bytes", "training_loss")  # names that a result's history has for itself
Score = Callable[[nn.Module], Mapping[str, float]]
CALLED_WITH = {
    "model": (), "optimizer": ("params",), "loss": ("output", "y"), "step": ("model", "batch"), "evaluate": ("model",),
    "rate": ("progress",), "collate_fn": ("samples",), "transform": ("sample",),
}  # fmt: skip
"""What functions of a task are given."""



class NotGiven(int):
    """A number that nobody gave."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Task:
    """What to train, on which data, and how to score it.

    Args:
        model: A function that builds the module; each role calls it, and all start from the same weights.
        data: A data set with `len(data)` and `data[i]`, a tuple of tensors, a stream (an IterableDataset), or a
            DataLoader, whose settings count. Only `covey.spark.fit` needs none.
        optimizer: A function from (name, parameter) pairs to a torch optimizer.
        loss: A function `loss(model(x), y)`, for batches that are pairs.
        step: A function `step(model, batch)` that returns the loss, for all other batches; in place of `loss`.
        batch_size: The number of samples in a batch of one worker.
        accumulate: The number of such batches in one step of a worker, whose gradients are added up.
        evaluate: A function from the model to its metrics, such as `covey.accuracy(data)`.
        better: For each metric, whether "higher" or "lower" is better; accuracy, loss and error are known.
        rate: A function from progress (0 to 1) to a factor on the learning rate.
        scheduler: A function from the optimizer to a torch scheduler; one with a second parameter `steps` is also given
            the number of the scheduler's steps in the run.
        schedule_by: What the scheduler is stepped by: "epoch" (a pass of all workers together over the data), "batch"
            (as many samples as one worker has in a step) or, for ReduceLROnPlateau, a metric of the scores.
        ema: The decay of an exponential average of the weights and float buffers, taken after each update: 0.999 keeps
            this much of the average before. It is scored, and returned, beside the model.
        clip_norm: The largest norm of a gradient that a step uses; larger ones are scaled down.
        transform: A function from a sample to what it is made into, which may draw random numbers: they depend on the
            seed, the pass over the data and the sample's number only, wherever it runs.
        preparers: The number of roles that transform samples for the workers; 0: each worker does it itself.
        loaders: The number of processes that load samples, for data that is not tensors.
        collate_fn: A function from a list of samples to a batch; by default torch's.
        sampler: What gives the order of samples in each pass; by default covey shuffles them all.
        drop_last: Whether a pass leaves out samples that do not make a whole batch for each worker.
        precision: "bf16" or "fp16" computes loss and gradients under autocast; weights, sums and scores stay "fp32".
        device: Where models and batches go: "cuda" (roles share the GPUs of their machine by their ranks), one such as
            "cuda:1", or "auto" (a GPU if there is one). By default the task's own functions say it.
        compile: Whether workers compute with `torch.compile(model)`; also the name of another backend of torch.compile.
        warm: Whether real runs do and undo two steps before the clock starts; False for models with state of their own.
        private: A `covey.PrivateSgd`, with which noise covers what any one sample changes (docs/private.md).
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
    data: Data | DataLoader[Any] | None = None
    optimizer: Callable[[Iterable[tuple[str, nn.Parameter]]], torch.optim.Optimizer]
    loss: Callable[..., Tensor] | None = None
    step: Callable[[nn.Module, Any], Tensor] | None = None
    batch_size: int = NotGiven(32)
    accumulate: int = 1
    evaluate: Score | None = None
    better: Mapping[str, Literal["higher", "lower"]] = field(default_factory=dict)
    rate: Callable[[float], float] | None = None
    scheduler: MakeScheduler | None = None
    schedule_by: str = "epoch"
    ema: float | None = None
    clip_norm: float | None = None
    transform: Callable[[Any], Any] | None = None
    preparers: int = 0
    loaders: int = NotGiven(0)
    collate_fn: Callable[[list[Any]], Any] | None = None
    sampler: Iterable[int] | None = None
    drop_last: bool = False
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    device: str | None = None
    compile: bool | str = False
    warm: bool = True
    private: PrivateSgd | None = None
    callbacks: Sequence[Any] = ()

    def __post_init__(self) -> None:
        self._check_functions()
        check_device(self.device)
        if not isinstance(self.compile, bool) and self.compile not in torch.compiler.list_backends(()):
            raise PlanError(
                f"Task: compile must be True, False or a backend of torch.compile, not {self.compile!r}: "
                f"{', '.join([*torch.compiler.list_backends(), 'aot_eager', 'eager'])}"
            )
        _check_better(self.better)
        check_fields("Task", self, omit=("data",))
        for name, arguments in CALLED_WITH.items():
            check_call("Task", name, getattr(self, name), arguments)
        self._check_data()
        for name, least in (("batch_size", 1), ("accumulate", 1), ("loaders", 0), ("preparers", 0)):
            if not least <= getattr(self, name) < MOST:
                raise PlanError(f"Task: {name} must be a whole number of at least {least}, not {getattr(self, name)!r}")
            object.__setattr__(self, name, int(getattr(self, name)))  # one of numpy's cannot be told to other roles
        if self.ema is not None and not 0 < self.ema < 1:
            raise PlanError(f"Task: ema must be a number between 0 and 1, such as 0.999, not {self.ema!r}")
        if self.clip_norm is not None and not self.clip_norm > 0:
            raise PlanError(f"Task: clip_norm must be more than 0, not {self.clip_norm!r}; None clips nothing")

    @property
    def step_size(self) -> int:
        """Samples of one step of a worker."""
        return self.batch_size * self.accumulate

    @property
    def dataset(self) -> Data | None:
        """The data, without the DataLoader that may hold it."""
        return self.data.dataset if isinstance(self.data, DataLoader) else self.data

    @property
    def loading(self) -> Loading:
        """How samples become batches."""
        others = settings_of(self.data) if isinstance(self.data, DataLoader) else {}
        return Loading(self.loaders, self.collate_fn, others, self.transform)

    def forward(self, model: nn.Module, batch: Any) -> Tensor:
        """The loss of one batch."""
        if self.precision == "fp32":
            return self._forward(model, batch)
        kind = next((parameter.device.type for parameter in model.parameters()), "cpu")
        with torch.autocast(kind, PRECISIONS[self.precision], cache_enabled=False):
            return self._forward(model, batch)

    def _forward(self, model: nn.Module, batch: Any) -> Tensor:
        if self.step is not None:
            with in_task("step(model, batch)", lambda: f"batch is {describe(batch)}, {_home(model)}"):
                loss = self.step(model, batch)
            return _scalar("step(model, batch)", loss)
        assert self.loss is not None, "a task has a loss or a step"
        if not isinstance(batch, tuple | list) or len(batch) != 2:
            raise PlanError(
                f"Task: loss(model(x), y) needs batches that are pairs (x, y), but the data gives {describe(batch)}; "
                "for other batches give step=lambda model, batch: … instead of loss"
            )
        x, y = batch
        with in_task("model(x)", lambda: f"x is {describe(x)}, {_home(model)}"):
            output = model(x)
        with in_task("loss(model(x), y)", lambda: f"model(x) is {describe(output)}, y is {describe(y)}"):
            loss = self.loss(output, y)
        return _scalar("loss(model(x), y)", loss)

    def _check_data(self) -> None:
        """Refuse data that cannot be dealt out; what a DataLoader says becomes the task's own."""
        if isinstance(self.data, DataLoader):
            batches = check_loader(self.data)
            found = {
                "batch_size": batches.batch_size, "loaders": self.data.num_workers, "drop_last": batches.drop_last,
                "collate_fn": self.data.collate_fn, "sampler": order_of(self.data.dataset, batches.sampler),
            }  # fmt: skip
            for name, value in found.items():
                given = getattr(self, name)
                if not (isinstance(given, NotGiven) or given is None or given is False or given == value):
                    raise PlanError(f"Task: the DataLoader has its own {name}; give it there, not to the Task as well")
                object.__setattr__(self, name, value)
        check_transform(vars(self), self.dataset)
        if self.dataset is None:
            return
        if isinstance(self.dataset, IterableDataset):
            return check_stream_settings(vars(self))
        check_data(self.dataset)
        if self.collate_fn is not None and self.transform is None and isinstance(self.dataset, tuple):
            raise PlanError("Task: collate_fn is for a data set; a tuple of tensors is indexed, batch by batch")
        if self.sampler is not None and not (hasattr(self.sampler, "__len__") and hasattr(self.sampler, "__iter__")):
            raise PlanError(
                f"Task: sampler must give sample numbers and their count, as torch's samplers do, "
                f"not {describe(self.sampler)}"
            )

    def _check_functions(self) -> None:
        """Refuse what a person may take for the function that is wanted."""
        if isinstance(self.model, nn.Module):
            made = f"lambda: {type(self.model).__name__}(…)"
            raise PlanError(f"Task: model must build a fresh model for each worker, so give a function: model={made}")
        if isinstance(self.optimizer, torch.optim.Optimizer):
            made = f"lambda params: torch.optim.{type(self.optimizer).__name__}(params, …)"
            raise PlanError(f"Task: optimizer must be a function of the parameters: optimizer={made}")
        if (self.loss is None) == (self.step is None):
            given = "neither was" if self.loss is None else "both were"
            raise PlanError(f"Task: give either loss=f(output, y) or step=f(model, batch); {given} given")
        if isinstance(self.loss, type):
            raise PlanError(f"Task: loss is a class; give an instance of it: loss={self.loss.__name__}()")
        check_scheduler(self.scheduler, self.schedule_by)


def _check_better(better: object) -> None:
    if not isinstance(better, Mapping) or any(way not in ("higher", "lower") for way in better.values()):
        raise PlanError(
            f"Task: better must say of metrics whether higher or lower is better, as {{'perplexity': 'lower'}}, "
            f"not {better!r:.80}"
        )


def _scalar(source: str, loss: object) -> Tensor:
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        raise PlanError(f"Task: {source} must give one number, such as a mean over the batch, not {describe(loss)}")
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
            f"Task: evaluate(model) must give numbers by name, such as {{'accuracy': 0.9}}, not {describe(found)}"
        )
    if not found:
        raise PlanError(
            "Task: evaluate(model) gave no number at all: it must give at least one by name, such as "
            "{'accuracy': 0.9}; without evaluate only the training loss is reported"
        )
    for name, value in found.items():
        if name in HISTORY:
            raise PlanError(f"Task: evaluate(model) gives {name!r}, a name of the history's own: rename it")
        if not isinstance(value, int | float | Tensor | SupportsFloat) or getattr(value, "numel", lambda: 1)() != 1:
            raise PlanError(f"Task: evaluate(model) must give one number for {name!r}, not {describe(value)}")
    return {name: float(value) for name, value in found.items()}


def _home(model: nn.Module) -> str:
    """Where the model's parameters are."""
    return f"the model is on {next((str(p.device) for p in model.parameters()), 'no device')}"
