"""Columns of Parquet files: their rows are samples."""

from __future__ import annotations

import io
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from itertools import accumulate
from typing import Any

import numpy as np

from covey.data.storage.formats import Format, OpenShard, Sample, listed, wanted_columns
from covey.data.storage.index import ShardEntry
from covey.data.storage.source import ShardSource
from covey.errors import PlanError

MOST = 1 << 30  # bytes of a row group, read
ROWS = 4096  # rows that are read at once
KEPT = 4  # row groups of a shard that are kept in memory


class ShardFile(io.RawIOBase):
    """A shard as a file that can be read at any place."""

    def __init__(self, source: ShardSource, entry: ShardEntry) -> None:
        self.source, self.entry, self.at = source, entry, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self.at = offset + (0, self.at, self.entry.size)[whence]
        return self.at

    def read(self, size: int = -1) -> bytes:
        stop = self.entry.size if size < 0 else min(self.entry.size, self.at + size)
        data = self.source.read(self.entry.name, self.at, stop) if stop > self.at else b""
        self.at += len(data)
        return data


class OpenParquet(OpenShard):
    """A row group is read whole, so random samples of many groups take time: see docs/data.md."""

    def __init__(self, source: ShardSource, entry: ShardEntry, wanted: tuple[str, ...]) -> None:
        parquet, arrow = _pyarrow()
        self.source, self.name = source, entry.name
        try:
            self.file = parquet.ParquetFile(ShardFile(source, entry))
            fields = {field.name: field for field in self.file.schema_arrow}
            groups = [self.file.metadata.row_group(group) for group in range(self.file.num_row_groups)]
        except (arrow.ArrowException, OSError, ValueError) as error:
            raise source.error(entry.name, f"is no Parquet file: {error}") from None
        self.columns = wanted_columns(source, entry.name, fields, wanted)
        for column in self.columns:
            if isinstance(fields[column].type, arrow.BaseExtensionType) or _pickled(fields[column].metadata):
                raise source.error(
                    entry.name, f"has a column {column!r} of {fields[column].type}, a type of its own: refused"
                )
        self.schema = arrow.schema([fields[column] for column in self.columns])
        self.ends = list(accumulate(group.num_rows for group in groups))
        self.samples = self.ends[-1] if groups else 0
        self._kept: OrderedDict[int, Any] = OrderedDict()

    def sample(self, number: int) -> Sample:
        group = bisect_right(self.ends, number)
        row = number - (self.ends[group - 1] if group else 0)
        return {name: _value(column[row]) for name, column in self._group(group).items()}

    def _group(self, group: int) -> dict[str, Any]:
        if group not in self._kept:
            _, arrow = _pyarrow()
            try:
                table = arrow.Table.from_batches(list(self._batches(group)), self.schema)
            except (arrow.ArrowException, OSError) as error:
                raise self.source.error(self.name, f"has a damaged row group {group}: {error}") from None
            if table.num_rows != self.ends[group] - (self.ends[group - 1] if group else 0):
                raise self.source.error(self.name, f"has {table.num_rows} rows in row group {group}; it says otherwise")
            self._kept[group] = {name: table.column(name) for name in self.columns}
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return dict(self._kept[group])

    def _batches(self, group: int) -> Iterator[Any]:
        """A row group, a piece at a time: one that is small in the file may be very large when it is read."""
        size = 0
        for batch in self.file.iter_batches(ROWS, [group], list(self.columns)):
            size += batch.nbytes
            if size > MOST:
                raise self.source.error(self.name, f"has a row group of more than {MOST} bytes: write smaller ones")
            yield batch


def _pickled(metadata: dict[bytes, bytes] | None) -> bool:
    """Types that older versions of pyarrow unpickle; this one shows the numbers behind them."""
    return b"py_extension_type" in (metadata or {}).get(b"ARROW:extension:name", b"")


def _value(scalar: Any) -> Any:
    value = scalar.as_py()
    if value is None:
        raise ValueError("a value is missing (null)")
    return np.asarray(value) if isinstance(value, list) else value


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise PlanError("Parquet needs pyarrow: pip install 'covey[remote]'") from None
    return parquet, pyarrow


def entries(source: ShardSource) -> tuple[ShardEntry, ...]:
    """All `.parquet` files."""
    return listed(source, ".parquet")


PARQUET = Format(".parquet", OpenParquet, entries)
