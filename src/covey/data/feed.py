"""From sample numbers to batches: tensors are indexed at once, everything else goes through torch's DataLoader."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset, default_collate

from covey.data.shards import Shards
from covey.data.streams import StreamBatches, StreamShards
from covey.data.transformed import transformed
from covey.errors import PlanError
from covey.task.data import BY_ITSELF, Data, Loading
from covey.task.device import placed


@dataclass(frozen=True, slots=True)
class Feed:
    """The batches of one worker, as an endless iterator that can start at any step.

    Args:
        data: A data set with `len(data)` and `data[i]`, or a tuple of tensors.
        shards: Which samples each worker sees.
        rank: The worker.
        loading: How samples become batches, for data that is not tensors.
        most: The largest number of samples in a batch: a larger step comes in several.
        device: Where batches go; None: they stay where the data is.
    """

    data: Data
    shards: Shards
    rank: int
    loading: Loading = BY_ITSELF
    most: int = 0
    device: torch.device | None = None

    def start(self, step: int = 0) -> Iterator[Any]:
        """The worker's batches from its own step number on, so that a resumed run goes on where it stopped."""
        if isinstance(self.data, IterableDataset):
            return map(self.placed, self._stream(self.data, step))
        if self.loading.transform:
            return self._transformed(step)
        draws = self._draws(step)
        select = self._selection()
        return map(self.placed, self._load(draws, step) if select is None else map(select, draws))

    @property
    def tensors(self) -> bool:
        """Whether samples are taken out of tensors, many at once."""
        return self._selection() is not None

    def take(self, numbers: Tensor, epoch: int = 0) -> Any:
        """One batch of chosen samples, in a pass over the data."""
        if transform := self.loading.transform:
            collate = self.loading.collate_fn
            return self.placed(transformed(self.data, transform, collate, numbers, self.shards.seed, epoch))
        if select := self._selection():
            return self.placed(select(numbers))
        return self.placed((self.loading.collate_fn or default_collate)([self.data[int(n)] for n in numbers]))

    def _transformed(self, step: int) -> Iterator[Any]:
        steps = self.shards.steps(self.rank)
        for number, draw in enumerate(self.shards.draws(self.rank, step), start=step):
            if number % steps == 0 or number == step:
                self._check_length(number // steps)
            for piece in draw.split(self.most) if self.most else (draw,):
                yield self.take(piece, number // steps)

    def _stream(self, data: IterableDataset[Any], step: int) -> Iterator[Any]:
        assert isinstance(self.shards, StreamShards), "a stream is dealt out as one"
        most = self.most or self.shards.batch_size
        batches = StreamBatches(data, self.shards, self.rank, step, most, self.loading.collate_fn)
        if not self.loading.loaders:
            return iter(batches)
        return iter(DataLoader(batches, batch_size=None, num_workers=1, **self.loading.others))

    def placed(self, batch: Any) -> Any:
        return batch if self.device is None else placed(batch, self.device)

    def _selection(self) -> Callable[[Tensor], tuple[Tensor, ...]] | None:
        own = self.loading.collate_fn not in (None, default_collate)  # the latter is what a DataLoader has if asked
        return None if own or self.loading.transform else _selection(self.data)

    def _draws(self, step: int) -> Iterator[Tensor]:
        """Which samples come, from a step on; in every pass the data must be as long as when it was dealt out."""
        steps = self.shards.steps(self.rank)
        for number, draw in enumerate(self.shards.draws(self.rank, step), start=step):
            if number % steps == 0 or number == step:
                self._check_length(number // steps)
            yield from draw.split(self.most) if self.most else (draw,)

    def _check_length(self, epoch: int) -> None:
        dealt, now = self.shards.length, len(self.data[0] if isinstance(self.data, tuple) else self.data)  # type: ignore[arg-type]
        if dealt is not None and now != dealt:
            raise PlanError(
                f"len(data) was {dealt} when the run began and is {now} now, in pass {epoch} of worker {self.rank}: a "
                "data set must keep its length while it is trained on; finish downloading or filtering it before "
                "training starts"
            )

    def _load(self, draws: Iterator[Tensor], step: int) -> Iterator[Any]:
        # The loader's processes get their seeds from here, not from the global generator that the model uses.
        seeds = torch.Generator().manual_seed(hash((self.shards.seed, self.rank, step)))
        numbers = (draw.tolist() for draw in draws)  # endless, so the loader's processes live as long as the iterator
        how = self.loading
        loader: DataLoader[Any] = DataLoader(
            self.data, batch_sampler=numbers, num_workers=how.loaders, collate_fn=how.collate_fn, generator=seeds,  # type: ignore[arg-type]
            **how.others,
        )  # fmt: skip
        return iter(loader)


def _selection(data: object) -> Callable[[Tensor], tuple[Tensor, ...]] | None:
    """How to take a batch out of tensors at once; None where samples must be asked for one by one."""
    if isinstance(data, tuple):
        if data[0].is_cuda and len({column.device for column in data}) == 1:
            return lambda numbers: _on_gpu(data, numbers)
        if any(column.device.type != "cpu" for column in data):
            return lambda numbers: tuple([column[numbers] for column in data])
        # It takes half the time of column[numbers], but wants the numbers on the column's device.
        return lambda numbers: tuple([column.index_select(0, numbers) for column in data])
    # Only the classes themselves: a subclass may change its samples on the way out.
    if type(data) is TensorDataset:
        return _selection(data.tensors)
    if type(data) is Subset and (inner := _selection(data.dataset)):
        kept = torch.as_tensor(data.indices)
        return lambda numbers: inner(kept[numbers])
    return None


def _on_gpu(columns: tuple[Tensor, ...], numbers: Tensor) -> tuple[Tensor, ...]:
    """The numbers go there without anybody waiting for what the GPU is busy with."""
    there = numbers.pin_memory().to(columns[0].device, non_blocking=True)
    return tuple([column.index_select(0, there) for column in columns])
