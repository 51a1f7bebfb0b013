"""What a Task's data may be, and how samples of it become batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, RandomSampler
from torch.utils.data.distributed import DistributedSampler

from covey.errors import PlanError
from covey.task.arguments import describe

Data = Dataset[Any] | tuple[Tensor, ...]
MOST = 1 << 31  # samples of a batch, batches of a step, processes that load: more are a mistake
LOADER_SETTINGS = ("pin_memory", "timeout", "worker_init_fn", "multiprocessing_context", "prefetch_factor")


@dataclass(frozen=True, slots=True)
class Loading:
    """How samples become batches.

    Args:
        loaders: The number of processes that load samples.
        collate_fn: A function from a list of samples to a batch; torch's own unless given.
        others: Further settings of torch's DataLoader, by name.
        transform: A function of one sample, which has a chance of its own.
    """

    loaders: int = 0
    collate_fn: Callable[[list[Any]], Any] | None = None
    others: Mapping[str, Any] = field(default_factory=dict)
    transform: Callable[[Any], Any] | None = None


BY_ITSELF = Loading()


def check_data(data: Any, owner: str = "Task") -> int:
    """The number of samples, after making sure that each can be asked for by its number."""
    if isinstance(data, IterableDataset) or not _is_map_style(data):
        raise PlanError(
            f"{owner}: data must be a data set with len(data) and data[i], or a tuple of tensors, "
            f"not {describe(data)}; one tensor goes in as (x,), and a stream as a torch IterableDataset"
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


def check_loader(loader: DataLoader[Any]) -> BatchSampler:
    """What makes its batches; refused where covey cannot deal out its samples itself."""
    batches = loader.batch_sampler
    if type(batches) is not BatchSampler:
        made = "no batches (batch_size=None)" if batches is None else "its batches by a batch_sampler of its own class"
        raise PlanError(
            f"Task: the DataLoader makes {made}, and covey deals out single samples: give it a batch_size and a "
            "sampler, or use it in a loop of your own, with covey.join and member.loader"
        )
    if isinstance(batches.sampler, DistributedSampler):
        raise PlanError(
            "Task: the DataLoader has a DistributedSampler, which divides the data already: omit it, covey gives each "
            "worker its share of the plain loader (shuffle=True, or the sampler that you want)"
        )
    return batches


def check_stream_settings(settings: Mapping[str, Any]) -> None:
    """Refuse what samples without numbers cannot have."""
    for name in ("sampler", "drop_last"):
        if settings[name]:
            raise PlanError(f"Task: data is a stream, which has an order of its own: omit {name}")
    if settings["loaders"] > 1:
        raise PlanError(
            f"Task: data is a stream, which one process reads: loaders must be 0 or 1, not {settings['loaders']}"
        )


def check_transform(settings: Mapping[str, Any], data: Data | None) -> None:
    """Refuse what a transform, and those that do it for workers, cannot have."""
    if settings["transform"] is None:
        if settings["preparers"] > 0:
            raise PlanError("Task: preparers transform samples: give transform=…, or omit preparers")
        return
    if isinstance(data, IterableDataset):
        raise PlanError("Task: data is a stream, whose samples have no numbers: transform them in the stream")
    if settings["loaders"]:
        raise PlanError("Task: loaders and transform: use preparers, which transform for all workers; omit loaders")
    if settings["private"]:
        raise PlanError("Task: private and transform: transform samples in the data set")


def order_of(data: Data, sampler: Iterable[int]) -> Iterable[int] | None:
    """A loader's sampler; None where it only shuffles, as covey does by itself, or has a stream."""
    if isinstance(data, IterableDataset):
        return None
    if type(sampler) is not RandomSampler:
        return sampler
    plain = not sampler.replacement and sampler.generator is None and len(sampler) == len(data)  # type: ignore[arg-type]
    return None if plain else sampler


def settings_of(loader: DataLoader[Any]) -> dict[str, Any]:
    """What else a loader says about the processes that load, where it says something."""
    return {name: value for name in LOADER_SETTINGS if (value := getattr(loader, name))}
