"""A data set whose samples lie in shards, in a folder or far away."""

from __future__ import annotations

import os
import struct
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from pathlib import Path
from typing import Any

from torch.utils.data import Dataset

from covey.data.arithmetic_order import GlobalBatches
from covey.data.storage.formats import Format, OpenShard
from covey.data.storage.index import INDEX, ShardEntry, ShardIndex, check_entries, read_index
from covey.data.storage.mds import MDS
from covey.data.storage.objects import ObjectSource, is_url
from covey.data.storage.parquet import PARQUET
from covey.data.storage.source import FolderSource, ShardSource
from covey.data.storage.stripes import CheckedSource
from covey.data.storage.tar import TAR
from covey.data.storage.tensors import TENSORS
from covey.data.stripe_cache.cached_source import CachedSource
from covey.decoding import UNREADABLE
from covey.errors import CoveyError, PlanError, ShardError
from covey.names import meant

FORMATS: Mapping[str, Format] = {"mds": MDS, "tar": TAR, "safetensors": TENSORS, "parquet": PARQUET}
AT_ONCE = 16  # samples that are fetched at once
DAMAGED = (*UNREADABLE, struct.error)


def remote(
    place: str | Path,
    format: str | None = None,
    columns: Sequence[str] = (),
    transform: Callable[[Any], Any] | None = None,
    cache: bool | str | Path = True,
) -> StoredData:
    """Return the data set whose shards are at a place: it has a length, and samples by number.

    Args:
        place: A folder, or a URL that begins with `s3://`, `gs://` or `https://`.
        format: `"mds"`, `"tar"`, `"safetensors"` or `"parquet"`; not needed where `covey data pack` wrote the shards.
        columns: The columns to read: a sample is then a tuple of their values. Without it, a dict of all of them.
        transform: A function from that to a sample.
        cache: Whether what is read from a URL is kept on this host's disk, where its index has hashes; or the folder
            in which it is kept, also of a folder that is far away, such as one on NFS.

    >>> index = covey.data.pack((torch.randn(100, 8), torch.arange(100)), "shards", columns=("x", "y"))
    >>> data = covey.data.remote("shards", columns=("x", "y"))
    >>> len(data), data[7][1]
    (100, 7)
    """
    source = open_source(place)
    index = index_of(source, format)
    if not cache or (cache is True and isinstance(source, FolderSource)):
        checked = CheckedSource(source, index.shards)
    else:
        checked = CachedSource(source, index.shards, folder=None if cache is True else cache)
    return StoredData(checked, index, tuple(columns), transform)


def open_source(place: str | Path) -> ShardSource:
    """The shards at a folder or URL."""
    return ObjectSource(str(place)) if is_url(str(place)) else FolderSource(place)


def index_of(source: ShardSource, format: str | None = None) -> ShardIndex:
    """The index at a place; where there is none, one without hashes, from what the format says by itself."""
    if format is not None:
        _format(format)
    if INDEX in source.names():
        index = read_index(source)
        if format not in (None, index.format):
            raise PlanError(f"{source.place} has shards of the format {index.format!r}, not {format!r}")
        _format(index.format)
        return index
    if format is None:
        raise PlanError(f"{source.place} has no {INDEX}: say format={' | '.join(FORMATS)}")
    return ShardIndex(format=format, shards=check_entries(source, _format(format).entries(source)))


def _format(name: str) -> Format:
    if name not in FORMATS:
        raise PlanError(f"unknown format {name!r}{meant(name, FORMATS)}")
    return FORMATS[name]


class StoredData(Dataset[Any]):
    """Samples in shards. Nothing that does not fit the index is given out: a ShardError names the shard."""

    def __init__(
        self, source: CheckedSource, index: ShardIndex, columns: tuple[str, ...], transform: Callable[[Any], Any] | None
    ) -> None:
        self.source, self.index, self.columns, self.transform = source, index, columns, transform
        self._open: dict[int, OpenShard] = {}
        self._pool: tuple[int, ThreadPoolExecutor] | None = None
        self._counts = [self._samples(number, entry) for number, entry in enumerate(index.shards)]
        self._ends = list(accumulate(self._counts))
        if self._ends[-1] > sys.maxsize:
            raise ShardError(f"{source.place}: {self._ends[-1]} samples are more than there can be")

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, number: int) -> Any:
        if not -len(self) <= number < len(self):
            raise IndexError(f"sample {number} of {len(self)}")
        number %= len(self)
        shard = bisect_right(self._ends, number)
        sample = self.sample(shard, number - (self._ends[shard - 1] if shard else 0))
        return sample if self.transform is None else self.transform(sample)

    def __getitems__(self, numbers: list[int]) -> list[Any]:
        """(A DataLoader calls it) A batch; of shards that are far away several samples are fetched at once."""
        if (
            isinstance(self.source.source, FolderSource) or self.index.format == "parquet"
        ):  # whose reader is one thread's
            return [self[number] for number in numbers]
        return list(self._threads().map(self.__getitem__, numbers))

    def _threads(self) -> ThreadPoolExecutor:
        if self._pool is None or self._pool[0] != os.getpid():  # threads do not survive a fork
            self._pool = os.getpid(), ThreadPoolExecutor(AT_ONCE, "covey-samples")
        return self._pool[1]

    def batches(
        self, batch_size: int, start: int = 0, reader: int = 0, readers: int = 1, seed: int = 0
    ) -> Iterator[list[Any]]:
        """Return one reader's part of every batch from number `start` on, without end; each epoch is shuffled anew.

        Args:
            batch_size: The number of samples in a batch of all readers together.
            start: The number of the first batch, so that a loop goes on where it ended, with any number of readers.
            reader: Which reader this is.
            readers: How many there are.
            seed: The seed of the order.
        """
        if not (batch_size >= readers >= 1 and 0 <= reader < readers and start >= 0):
            asked = f"batch_size={batch_size}, start={start}, reader={reader}, readers={readers}"
            raise PlanError(f"batches({asked}): each of the readers, from 0 on, needs at least one sample of a batch")
        parts = GlobalBatches(len(self), batch_size, seed).parts(start, reader, readers)
        return map(self.__getitems__, parts)

    def _samples(self, number: int, entry: ShardEntry) -> int:
        return self.opened(number).samples if entry.samples is None else entry.samples

    def opened(self, number: int) -> OpenShard:
        """A shard, by its number."""
        if number not in self._open:
            entry = self.index.shards[number]
            try:
                opened = FORMATS[self.index.format].open(self.source, entry, self.columns)
            except CoveyError:
                raise
            except DAMAGED as error:
                raise self.source.error(entry.name, f"cannot be read: {error or type(error).__name__}") from None
            if entry.samples not in (None, opened.samples):
                raise self.source.error(entry.name, f"has {opened.samples} samples; its index says {entry.samples}")
            self._open[number] = opened
        return self._open[number]

    def sample(self, shard: int, number: int) -> Any:
        """A sample by its number in its shard, before the transform."""
        opened = self.opened(shard)
        try:
            sample = opened.sample(number)
            return tuple([sample[column] for column in self.columns]) if self.columns else sample
        except CoveyError:
            raise
        except DAMAGED as error:
            name = self.index.shards[shard].name
            raise self.source.error(name, f"has a damaged sample {number}: {error or type(error).__name__}") from None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_open": {}, "_pool": None}
