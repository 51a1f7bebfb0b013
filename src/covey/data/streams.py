"""Data without sample numbers: of a stream worker i takes the items i, i + n, …, each once in a pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count, islice
from typing import Any

from torch import Tensor
from torch.utils.data import IterableDataset, default_collate

from covey.data.seeded_draws import SeededDraws, mixed
from covey.data.shards import Shards
from covey.errors import PlanError


@dataclass(frozen=True, slots=True)
class StreamShards(Shards):
    """How many samples each worker gets of a stream, and when.

    Args:
        endless: The stream has no length: `samples` is what the run takes, and where the stream ends it begins again.
    """

    endless: bool = False

    @property
    def length(self) -> int | None:
        return None

    def order(self, epoch: int) -> Tensor:
        raise PlanError("the data is a stream, whose samples have no numbers, and this asks for samples by number")


def stream_length(data: IterableDataset[Any]) -> int | None:
    """The number of items, if the stream says it."""
    try:
        return len(data)  # type: ignore[arg-type]
    except (TypeError, NotImplementedError):
        return None


@dataclass(frozen=True)
class StreamBatches(IterableDataset[Any]):
    """The batches of one worker from a step on.

    A stream that shuffles draws from (seed, pass), the same for every worker, and is told the pass if it has a method
    `set_epoch`. One with a method `shard` divides itself, unless its `num_shards` are fewer than the workers.
    """

    data: IterableDataset[Any]
    shards: StreamShards
    rank: int
    step: int
    most: int  # samples in a batch: a larger step comes in several
    collate: Callable[[list[Any]], Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        items, epoch = iter(()), -1
        collate = self.collate or default_collate
        draws = SeededDraws(0)
        for step in count(self.step):
            now, number = divmod(step, self.shards.steps(self.rank))
            if now != epoch and not (self.shards.endless and epoch >= 0):
                self._check_end(items, draws, epoch)
                epoch, draws = now, SeededDraws(mixed(self.shards.seed, now))
                with draws:
                    items = self._items(now)
                    before = sum(self.shards.batch(self.rank, earlier) for earlier in range(number))
                    self._check_count(sum(1 for _ in islice(items, before)), before, now)  # of earlier steps
            with draws:
                batch = self._take(items, self.shards.batch(self.rank, step), now)
            yield from (collate(batch[first : first + self.most]) for first in range(0, len(batch), self.most))

    def _items(self, epoch: int) -> Iterator[Any]:
        """This worker's items of a pass; of a stream without a length, of all passes from this one on."""
        for number in count(epoch):
            if hasattr(self.data, "set_epoch"):
                self.data.set_epoch(number)
            shard, parts = getattr(self.data, "shard", None), getattr(self.data, "num_shards", self.shards.workers)
            if callable(shard) and parts >= self.shards.workers:
                mine = iter(shard(num_shards=self.shards.workers, index=self.rank))
            else:
                mine = islice(iter(self.data), self.rank, None, self.shards.workers)
            some = False
            for item in mine:
                some = True
                yield item
            if not self.shards.endless:
                return
            if not some:
                raise PlanError(f"the stream gave worker {self.rank} of {self.shards.workers} nothing in pass {number}")

    def _take(self, items: Iterator[Any], samples: int, epoch: int) -> list[Any]:
        batch = list(islice(items, samples))
        self._check_count(len(batch), samples, epoch)
        return batch

    def _check_count(self, came: int, samples: int, epoch: int) -> None:
        if came < samples:
            raise PlanError(
                f"len(data) is {self.shards.samples}, and the stream gave fewer items in pass {epoch} of worker "
                f"{self.rank}: let it have as many as it says in every pass, or no length, and give steps=…"
            )

    def _check_end(self, items: Iterator[Any], draws: SeededDraws, epoch: int) -> None:
        with draws:
            more = next(items, self) is not self
        if more:
            raise PlanError(
                f"len(data) is {self.shards.samples}, and the stream gave more items in pass {epoch} of worker "
                f"{self.rank}: let it have as many as it says in every pass, or no length, and give steps=…"
            )
