"""Write samples into shards, with an index; and check shards that somebody has."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor

from covey import atomic_file
from covey.data.storage.index import INDEX, ShardEntry, ShardIndex, hashed
from covey.data.storage.source import FolderSource
from covey.data.storage.stored import FORMATS, StoredData
from covey.errors import CoveyError, PlanError
from covey.names import meant, option

SHARD = 1 << 26  # bytes of a shard, about
USUAL = ("x", "y")  # names of the values of a sample
Row = dict[str, Any]


def pack(
    data: Any, folder: str | Path, format: str = "mds", columns: Sequence[str] = (), shard_bytes: int = SHARD
) -> ShardIndex:
    """Write a data set into shards, with an index that has the hash of every stripe.

    Args:
        data: A data set with `len(data)` and `data[i]`, or a tuple of tensors. A sample is a dict, tuple or value.
        folder: Where to; it must be empty, or not exist yet.
        format: `"mds"`, `"tar"`, `"safetensors"` or `"parquet"`.
        columns: The names of the values of a sample, if samples are not dicts; usually x and y.
        shard_bytes: The size of a shard, about.

    >>> index = covey.data.pack((torch.randn(100, 8), torch.arange(100)), "packed", columns=("x", "y"))
    >>> sum(shard.samples for shard in index.shards)
    100
    """
    if format not in WRITERS:
        raise PlanError(f"unknown format {format!r}{meant(format, WRITERS)}")
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    if any(place.iterdir()):
        raise PlanError(f"{place} is not empty; name a new folder")
    source, written = FolderSource(place), []
    for number, rows in enumerate(_chunks(_rows(data, tuple(columns)), shard_bytes)):
        name = f"shard.{number:05}{FORMATS[format].suffix}"
        WRITERS[format](place / name, rows)
        written.append(hashed(source, name, samples=len(rows)))
    if not written:
        raise PlanError("data is empty; it needs at least one sample")
    if format == "mds":
        atomic_file.write(place / "index.json", json.dumps(_mds_index(source, written)))
    index = ShardIndex(format=format, shards=tuple(written))
    atomic_file.write(place / INDEX, msgspec.json.encode(index).decode())
    return index


def check_shards(data: StoredData) -> Iterator[tuple[ShardEntry, str]]:
    """Read every sample of every shard; with each shard what is wrong with it, or nothing."""
    for number, entry in enumerate(data.index.shards):
        wrong = ""
        try:
            data.source.whole(entry.name)
            opened = data.opened(number)
            for sample in range(opened.samples):
                data.sample(number, sample)
        except CoveyError as error:
            wrong = str(error)
        yield entry, wrong


def write_index(folder: Path, data: StoredData) -> ShardIndex:
    """Write `shards.json`, with hashes of what is there now."""
    source = FolderSource(folder)
    counted = (data.opened(number).samples for number in range(len(data.index.shards)))
    entries = (hashed(source, entry.name, samples) for entry, samples in zip(data.index.shards, counted, strict=True))
    index = ShardIndex(format=data.index.format, shards=tuple(entries))
    atomic_file.write(folder / INDEX, msgspec.json.encode(index).decode())
    return index


def _rows(data: Any, columns: tuple[str, ...]) -> Iterator[Row]:
    if isinstance(data, tuple):
        samples: Iterable[Any] = zip(*data, strict=True)
    else:
        samples = (data[number] for number in range(len(data))) if hasattr(data, "__getitem__") else iter(data)
    for sample in samples:
        if isinstance(sample, dict):
            if columns:
                raise PlanError(f"{option('columns', ','.join(columns))}: samples are dicts and have names: omit it")
        else:
            values = sample if isinstance(sample, tuple | list) else (sample,)
            names = columns or USUAL
            if len(names) != len(values):
                raise PlanError(f"a sample has {len(values)} values, and columns names {len(names)}: name each")
            sample = dict(zip(names, values, strict=True))
        yield {str(name): _plain(str(name), value) for name, value in sample.items()}


def _plain(name: str, value: Any) -> Any:
    """The value as one of: int, float, str, bytes, an array with at least one axis, or what JSON can say."""
    if isinstance(value, Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0):
        value = value.item()
    if isinstance(value, bool):
        value = int(value)
    if isinstance(value, np.ndarray) and (value.dtype.hasobject or not value.size):
        raise PlanError(f"column {name!r} has an array of Python objects, or an empty one, which cannot be packed")
    if not isinstance(value, int | float | str | bytes | np.ndarray | list | dict):
        raise PlanError(f"column {name!r} has a {type(value).__name__}, which cannot be packed: pickles are refused")
    return value


def _chunks(rows: Iterator[Row], limit: int) -> Iterator[list[Row]]:
    some: list[Row] = []
    size = 0
    for row in rows:
        some.append(row)
        size += sum(_size(value) for value in row.values())
        if size >= limit:
            yield some
            some, size = [], 0
    if some:
        yield some


def _size(value: Any) -> int:
    if isinstance(value, np.ndarray):
        return int(value.nbytes)
    return len(value) if isinstance(value, str | bytes) else 8


def _write_tar(path: Path, rows: list[Row]) -> None:
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as file:
        for number, row in enumerate(rows):
            for name, value in row.items():
                ending, data = _tar_value(name, value)
                info = tarfile.TarInfo(f"{path.name.split('.')[1]}{number:08}.{name}{ending}")
                info.size = len(data)
                file.addfile(info, io.BytesIO(data))


def _tar_value(name: str, value: Any) -> tuple[str, bytes]:
    if isinstance(value, bytes):
        return "", value
    if isinstance(value, np.ndarray):
        file = io.BytesIO()
        np.lib.format.write_array(file, value, allow_pickle=False)
        return ".npy", file.getvalue()
    if isinstance(value, str):
        return ".txt", value.encode()
    return (".cls", str(value).encode()) if isinstance(value, int) else (".json", json.dumps(value).encode())


MDS_CODES = {np.dtype(name): code for code, name in {
    8: "uint8", 9: "int8", 16: "uint16", 17: "int16", 18: "float16", 32: "uint32", 33: "int32", 34: "float32",
    64: "uint64", 65: "int64", 66: "float64"}.items()}  # fmt: skip


def _mds_encoding(value: Any) -> tuple[str, int | None]:
    kinds: dict[type, tuple[str, int | None]] = {
        int: ("int", 8), float: ("float64", 8), str: ("str", None), bytes: ("bytes", None),
        np.ndarray: ("ndarray", None),
    }  # fmt: skip
    return kinds.get(type(value), ("json", None))


def _mds_value(value: Any) -> bytes:
    if isinstance(value, np.ndarray):
        if value.dtype not in MDS_CODES:
            raise PlanError(f"MDS has no arrays of {value.dtype}; it has {', '.join(map(str, MDS_CODES))}")
        shape = np.array(value.shape, "<u4")
        return bytes([MDS_CODES[value.dtype], value.ndim << 2 | 2]) + shape.tobytes() + value.tobytes()
    if isinstance(value, int | float):
        return np.array(value, "<i8" if isinstance(value, int) else "<f8").tobytes()
    if isinstance(value, bytes | str):
        return value if isinstance(value, bytes) else value.encode()
    return json.dumps(value).encode()


def _mds_header(row: Row) -> dict[str, Any]:
    names = sorted(row)
    kinds = [_mds_encoding(row[name]) for name in names]
    return {
        "column_encodings": [kind for kind, _ in kinds], "column_names": names, "column_sizes": [s for _, s in kinds],
        "compression": None, "format": "mds", "hashes": [], "size_limit": None, "version": 2,
    }  # fmt: skip


def _write_mds(path: Path, rows: list[Row]) -> None:
    header = _mds_header(rows[0])
    samples = []
    for row in rows:
        if _mds_header(row) != header:
            raise PlanError("MDS: all samples must have the same columns, of the same kinds")
        values = [_mds_value(row[name]) for name in header["column_names"]]
        sizes = [len(v) for v, fixed in zip(values, header["column_sizes"], strict=True) if fixed is None]
        samples.append(np.array(sizes, "<u4").tobytes() + b"".join(values))
    text = json.dumps(header, sort_keys=True).encode()
    first = 4 + 4 * (len(samples) + 1) + len(text)
    offsets = np.cumsum([first, *map(len, samples)])
    if offsets[-1] >= 1 << 32:
        raise PlanError("an MDS shard has at most 4 GiB: use smaller shards")
    head = np.array([len(samples), *offsets], "<u4").tobytes()
    path.write_bytes(head + text + b"".join(samples))


def _mds_index(source: FolderSource, entries: list[ShardEntry]) -> dict[str, Any]:
    shards = []
    for entry in entries:
        table = 8 + 4 * (entry.samples or 0)
        first = int(np.frombuffer(source.read(entry.name, 4, 8), "<u4")[0])
        header = json.loads(source.read(entry.name, table, first))
        raw = {"basename": entry.name, "bytes": entry.size, "hashes": {}}
        shards.append({**header, "raw_data": raw, "zip_data": None, "samples": entry.samples})
    return {"version": 2, "shards": shards}


def _write_tensors(path: Path, rows: list[Row]) -> None:
    from safetensors.torch import save_file

    try:
        columns = {name: torch.stack([torch.as_tensor(row[name]) for row in rows]) for name in rows[0]}
    except (TypeError, ValueError, RuntimeError, KeyError) as error:
        raise PlanError(f"safetensors: every column must have numbers of one shape ({error})") from None
    save_file(columns, str(path))


def _write_parquet(path: Path, rows: list[Row]) -> None:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise PlanError("Parquet needs pyarrow: pip install 'covey[remote]'") from None

    plain = [{k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in row.items()} for row in rows]
    parquet.write_table(pyarrow.Table.from_pylist(plain), path)


WRITERS: dict[str, Callable[[Path, list[Row]], None]] = {
    "mds": _write_mds, "tar": _write_tar, "safetensors": _write_tensors, "parquet": _write_parquet,
}  # fmt: skip
