"""From the rows of a DataFrame or an RDD to tensors, on the executors: nothing of them passes through the launcher."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from covey.data.partitions import RowInfo
from covey.errors import PlanError

Array = npt.NDArray[Any]
CHUNK = 16 << 20  # bytes of one element of the packed partitions
DTYPES = {"float32": "F32", "int64": "I64", "uint8": "U8", "bool": "BOOL"}  # as safetensors writes them


@dataclass(frozen=True, slots=True)
class Pick:
    """A row as arrays: its features as one, then its label. Without names a row is its own tuple."""

    features: tuple[str, ...] = ()
    label: str = ""

    def __call__(self, row: Any) -> list[Array]:
        if not self.features:
            parts = row if isinstance(row, tuple) else (row,)
            return [array(part, f"part {number}") for number, part in enumerate(parts)]
        if len(self.features) == 1:
            x = array(row[self.features[0]], self.features[0])  # of its own shape and kind, unless it is one number
            x = x if x.ndim else x.reshape(1).astype(np.float32)
        else:  # single numbers and vectors side by side, as real numbers
            x = np.concatenate([array(row[name], name).reshape(-1) for name in self.features]).astype(np.float32)
        return [x, array(row[self.label], self.label)] if self.label else [x]


def array(value: Any, name: str) -> Array:
    """A cell's numbers: real ones as float32, whole ones as int64, bytes as uint8."""
    if isinstance(value, bytes | bytearray):
        return np.frombuffer(value, np.uint8)
    found = np.asarray(value.toArray() if hasattr(value, "toArray") else value)  # a vector of Spark's ML library
    if found.dtype.kind == "f":
        return found.astype(np.float32)
    if found.dtype.kind in "iu" and found.dtype != np.uint8:
        return found.astype(np.int64)
    if found.dtype.kind in "bu":
        return found
    raise PlanError(f"{name} holds {value!r:.40}, which is not a number; fill or remove such rows first")


def chunks(rows: Iterable[Any], pick: Pick) -> Iterator[list[Array] | str]:
    """The rows, many at a time: an array for each column. A string says what is wrong with them."""
    waiting: list[list[Array]] = []
    size = 0
    try:
        for row in rows:
            waiting.append(pick(row))
            size += sum(part.nbytes for part in waiting[-1])
            if size >= CHUNK:
                yield stacked(waiting)
                waiting, size = [], 0
        if waiting:
            yield stacked(waiting)
    except PlanError as error:
        yield str(error)


def stacked(rows: Sequence[Sequence[Array]]) -> list[Array]:
    columns = list(zip(*rows, strict=True))
    for number, column in enumerate(columns):
        if len(kinds := {(part.shape, str(part.dtype)) for part in column}) > 1:
            raise PlanError(f"column {number} differs from row to row: {' and '.join(map(str, sorted(kinds)))}")
    return [np.stack(column) for column in columns]


@dataclass(frozen=True, slots=True)
class PartitionCount:
    """What is known of one partition."""

    rows: int = 0
    columns: tuple[tuple[tuple[int, ...], str], ...] = ()
    trouble: str = ""


def count(partition: Iterable[list[Array] | str]) -> Iterator[PartitionCount]:
    """(On an executor) How many rows, and of what."""
    rows = 0
    columns: tuple[tuple[tuple[int, ...], str], ...] = ()
    for chunk in partition:
        if isinstance(chunk, str):
            yield PartitionCount(trouble=chunk)
            return
        found = tuple((column.shape[1:], str(column.dtype)) for column in chunk)
        if columns and found != columns:
            yield PartitionCount(trouble=f"the rows differ: {columns} and {found}")
            return
        rows, columns = rows + len(chunk[0]), found
    yield PartitionCount(rows, columns)


def known(counted: Sequence[PartitionCount]) -> RowInfo:
    """What is known of all rows, worker by worker, if they can be trained on."""
    for number, part in enumerate(counted):
        if part.trouble:
            raise PlanError(f"partition {number}: {part.trouble}")
        if not part.rows:
            raise PlanError(f"partition {number} is empty, so a worker would have no rows: repartition the data first")
        if part.columns != counted[0].columns:
            raise PlanError(f"the rows of partition {number} are {part.columns}, of partition 0 {counted[0].columns}")
    return RowInfo(tuple(counted[number].rows for number in ranks(counted)), counted[0].columns)


def ranks(counted: Sequence[PartitionCount]) -> list[int]:
    """Which worker has each partition: its own number, but worker 0, which strategies need until the end, the longest.

    Worker 0 leads, and its model is scored where all are the same: who ends before the others can do neither.
    """
    longest = max(range(len(counted)), key=lambda number: (counted[number].rows, -number))
    found = list(range(len(counted)))
    found[0], found[longest] = found[longest], found[0]
    return found


@contextmanager
def in_memory(partition: Iterable[list[Array]], rows: RowInfo, number: int) -> Iterator[str]:
    """(On an executor) The partition's tensors in a file without a name, which this host's roles map into memory."""
    header, places, end = {}, [], 0
    for index, (shape, dtype) in enumerate(rows.columns):
        begin, end = end, end + rows.counts[number] * int(np.prod(shape)) * np.dtype(dtype).itemsize
        whole = [rows.counts[number], *shape]
        header[str(index)] = {"dtype": DTYPES[dtype], "shape": whole, "data_offsets": [begin, end]}
        places.append(begin)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 64)
    start = 8 + len(text)
    file = os.memfd_create("covey rows", os.MFD_CLOEXEC)
    try:
        os.truncate(file, start + end)
        _write(file, len(text).to_bytes(8, "little") + text, 0)
        for chunk in partition:
            for index, column in enumerate(chunk):
                _write(file, np.ascontiguousarray(column).data.cast("B"), start + places[index])
                places[index] += column.nbytes
        yield f"/proc/{os.getpid()}/fd/{file}"
    finally:
        os.close(file)


def _write(file: int, data: bytes | memoryview, at: int) -> None:
    view = memoryview(data)
    while view:
        done = os.pwrite(file, view, at)
        view, at = view[done:], at + done
