"""May a trial be trained together with others, and with which? With those that compute the same on the same data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from covey.model import build
from covey.task import Task
from covey.tune import fused_state
from covey.tune.segment import KEPT, Segment

ALIKE = ("bsp", "allreduce")  # strategies that with one worker are SGD
STATE = "fused.safetensors"
PLAIN = ("maximize", "differentiable", "nesterov")  # settings of SGD that must be off


@dataclass(frozen=True, slots=True)
class Fusable:
    """A trial that can be trained together with others like it."""

    segment: Segment
    task: Task
    model: nn.Module

    def like(self, other: Fusable) -> bool:
        """Whether both compute the same on the same batches, but for weights and settings of SGD."""
        mine, theirs = self.task, other.task
        shapes = [{name: p.shape for name, p in one.model.named_parameters()} for one in (self, other)]
        same = mine.loss is theirs.loss and mine.batch_size == theirs.batch_size and shapes[0] == shapes[1]
        return (
            same and str(self.model) == str(other.model) and self.segment.until == other.segment.until
            and self.begun == other.begun and _same_data(mine, theirs)
        )  # fmt: skip

    @property
    def begun(self) -> int:
        """Epochs that it has done."""
        return self.curve[-1][0] if self.curve else 0

    @property
    def curve(self) -> fused_state.Curve:
        """Its scores, up to where it was kept: a search that was interrupted may not have heard of the last ones."""
        return fused_state.kept_curve(self.state, self.segment.curve) if self.kept else []

    @property
    def state(self) -> Path:
        return Path(self.segment.folder) / KEPT / STATE

    @property
    def kept(self) -> bool:
        return self.segment.resumes and self.state.is_file()


def fusable(segment: Segment, task: Task) -> Fusable | None:
    """The trial, if one pass over several computes what it would compute alone."""
    if segment.resumes and not (Path(segment.folder) / KEPT / STATE).is_file():
        return None  # it has begun alone
    plain = segment.workers == 1 and segment.strategy in ALIKE and task.loss is not None
    plain = plain and task.evaluate is not None and segment.metric != "loss"  # of training, which is a mean of steps
    unusual = (
        task.step, task.clip_norm, task.ema, task.scheduler, task.rate, task.device, task.sampler, task.collate_fn,
        task.private,
    )  # fmt: skip
    if not plain or any(one is not None for one in unusual) or task.accumulate > 1 or task.compile or task.drop_last:
        return None
    if task.precision != "fp32" or not _columns(task):
        return None
    model = build.model(task, segment.seed)
    optimizer = task.optimizer(iter(list(model.named_parameters())))
    dropout = any(isinstance(one, nn.modules.dropout._DropoutNd) for one in model.modules())
    if dropout or list(model.buffers()) or type(optimizer) is not torch.optim.SGD or len(optimizer.param_groups) > 1:
        return None
    if any(optimizer.param_groups[0][name] for name in PLAIN) or not all(p.requires_grad for p in model.parameters()):
        return None
    return Fusable(segment, task, model)


def _columns(task: Task) -> tuple[Tensor, ...] | None:
    """The data, if it is tensors of inputs and answers."""
    data = task.dataset
    columns = data.tensors if isinstance(data, torch.utils.data.TensorDataset) else data
    if isinstance(columns, tuple) and len(columns) == 2 and all(isinstance(one, Tensor) for one in columns):
        return columns
    return None


def _same_data(one: Task, other: Task) -> bool:
    mine, theirs = _columns(one), _columns(other)
    assert mine and theirs
    return all(a is b or (a.shape == b.shape and torch.equal(a, b)) for a, b in zip(mine, theirs, strict=True))
