"""Which task do short runs train? One that their processes have quickly: they do not read all the data again."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from covey.engines import handover
from covey.errors import PlanError
from covey.task import Task

STEPS, FEWEST = 32, 8  # for which each worker has samples of its own; then it begins with the first again
ROOM = 1 << 23  # bytes of samples from which they are fewer: every process of every run unpacks them
LARGEST = 1 << 26  # bytes that are handed to each process


def shortened(task: Task, given: Task | str, workers: int) -> Task | str:
    """The task without scores and callbacks, and with few of its samples; as it was given, where that cannot be.

    A task that is named is made anew by every process of every run, which reads its data. Where the data are tensors,
    the time of a step does not depend on how many there are.
    """
    data = _first(task, workers * task.step_size)
    if data is None or _changed_torch():
        return given
    evaluate = task.evaluate if task.schedule_by not in ("epoch", "batch") else None  # a schedule may follow a metric
    short = replace(task, data=data, evaluate=evaluate, callbacks=())
    try:
        return short if len(handover.pack(short)) <= LARGEST else given
    except PlanError:  # it cannot leave this process
        return given


def _first(task: Task, step: int) -> TensorDataset | tuple[Tensor, ...] | None:
    """Samples of the first steps, in memory of their own; None where the data are not plain tensors."""
    data = task.data
    tensors = data.tensors if type(data) is TensorDataset else data
    if task.sampler is not None or not isinstance(tensors, tuple) or not all(
        isinstance(tensor, Tensor) and tensor.device.type == "cpu" for tensor in tensors
    ):  # fmt: skip
        return None
    size = sum(tensor[:step].nbytes for tensor in tensors)
    many = step * max(FEWEST, min(STEPS, ROOM // max(1, size)))
    few = tuple(tensor[:many].clone() for tensor in tensors)
    return TensorDataset(*few) if type(data) is TensorDataset else few


def _changed_torch() -> bool:
    """Whether a task's file has changed how torch computes, which processes that do not import it would not know."""
    return torch.get_default_dtype() != torch.float32 or torch.get_float32_matmul_precision() != "highest"
