"""Columns of Parquet files: their rows are samples."""

from __future__ import annotations

import io
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from covey.data.storage.formats import Format, OpenShard, Sample, listed, wanted_columns
from covey.data.storage.index import ShardEntry
from covey.data.storage.parquet_pages import ColumnSize, column_size
from covey.data.storage.source import ShardSource
from covey.errors import PlanError

MOST = 1 << 30  # bytes of a row group in memory, and of all that are kept of a set
AT_ONCE = 1 << 28  # bytes of values that may be copies of one another, and are decoded at once
TEXTS = ("string", "binary")  # types whose values stay in a dictionary that they are in
PLAIN = {"PLAIN", "RLE", "BIT_PACKED", "PLAIN_DICTIONARY", "RLE_DICTIONARY"}  # encodings with which that works
NUMBERS: Mapping[str, type] = {
    **dict.fromkeys(("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"), np.int64),
    **dict.fromkeys(("float", "double"), np.float64),
}
KEPT: WeakKeyDictionary[ShardSource, OrderedDict[tuple[str, int, tuple[str, ...]], KeptGroup]] = WeakKeyDictionary()


class KeptGroup(NamedTuple):
    """A row group in memory."""

    size: int
    columns: dict[str, Any]


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
        self.source, self.entry = source, entry
        try:
            self.file = parquet.ParquetFile(ShardFile(source, entry))
            self.shared = _texts(self.file)
            self.file = parquet.ParquetFile(
                ShardFile(source, entry), metadata=self.file.metadata, read_dictionary=[*self.shared]
            )
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

    def sample(self, number: int) -> Sample:
        group = bisect_right(self.ends, number)
        row = number - (self.ends[group - 1] if group else 0)
        return {name: _value(column[row]) for name, column in self._group(group).items()}

    def _group(self, group: int) -> dict[str, Any]:
        kept, key = KEPT.setdefault(self.source, OrderedDict()), (self.entry.name, group, self.columns)
        if key not in kept:
            size = self._size(group)
            kept[key] = KeptGroup(size.total, self._read(group, size))
            while sum(one.size for one in kept.values()) > MOST and len(kept) > 1:
                kept.popitem(last=False)
        kept.move_to_end(key)
        return kept[key].columns

    def _read(self, group: int, size: ColumnSize) -> dict[str, Any]:
        _, arrow = _pyarrow()
        many = self.ends[group] - (self.ends[group - 1] if group else 0)
        rows = max(1, min(many, AT_ONCE // size.repeated if size.repeated else many))
        batches, taken = [], 0
        try:
            for batch in self.file.iter_batches(rows, [group], list(self.columns), use_threads=False):
                taken += batch.nbytes
                self._check(group, taken)
                batches.append(batch)
            table = arrow.Table.from_batches(batches, self.schema)
        except (arrow.ArrowException, OSError) as error:
            raise self.source.error(self.entry.name, f"has a damaged row group {group}: {error}") from None
        if table.num_rows != many:
            raise self.source.error(
                self.entry.name, f"has {table.num_rows} rows in row group {group}; it says otherwise"
            )
        return {name: table.column(name) for name in self.columns}

    def _size(self, group: int) -> ColumnSize:
        """What a row group takes in memory, at most; one that is small in the file may be very large."""
        total, repeated = 0, 0
        for number, leaf in enumerate(self.file.schema):
            if leaf.path.split(".")[0] in self.columns or leaf.path in self.columns:
                chunk = self.file.metadata.row_group(group).column(number)
                width = leaf.length if leaf.physical_type == "FIXED_LEN_BYTE_ARRAY" else 0
                size = column_size(self.source, self.entry, chunk, width, leaf.path in self.shared)
                total += size.total
                if size.repeated and leaf.max_repetition_level:  # one row may have all values
                    total += size.repeated * chunk.num_values
                repeated += size.repeated
                self._check(group, total)
        return ColumnSize(total, repeated)

    def _check(self, group: int, size: int) -> None:
        if size > MOST:
            raise self.source.error(
                self.entry.name, f"has a row group {group} that takes more than {MOST} bytes: write smaller ones"
            )


def _texts(file: Any) -> frozenset[str]:
    """The columns whose values stay in their dictionary: else one long value could be copied for every row."""
    kinds = [kind for field in file.schema_arrow for kind in _leaves(field.type)]
    if len(kinds) != len(file.schema):
        return frozenset()
    groups = [file.metadata.row_group(number) for number in range(file.num_row_groups)]
    return frozenset(
        leaf.path for number, (leaf, kind) in enumerate(zip(file.schema, kinds, strict=True))
        if leaf.physical_type == "BYTE_ARRAY" and kind in TEXTS
        and all(PLAIN.issuperset(group.column(number).encodings) for group in groups)
    )  # fmt: skip


def _leaves(kind: Any) -> Iterator[str]:
    """The types of the columns that a type is made of."""
    parts = [kind.field(number) for number in range(kind.num_fields)]
    if not parts:
        yield str(kind)
    for part in parts:
        yield from _leaves(part.type)


def _pickled(metadata: dict[bytes, bytes] | None) -> bool:
    """Types that older versions of pyarrow unpickle; this one shows the numbers behind them."""
    return b"py_extension_type" in (metadata or {}).get(b"ARROW:extension:name", b"")


def _value(scalar: Any) -> Any:
    """As Python has it; but a list of numbers is an array at once, as a list takes five times the memory."""
    numbers = getattr(scalar, "values", None)
    if numbers is not None and str(getattr(numbers, "type", "")) in NUMBERS and not numbers.null_count:
        return np.asarray(numbers.to_numpy(zero_copy_only=False), NUMBERS[str(numbers.type)])
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
