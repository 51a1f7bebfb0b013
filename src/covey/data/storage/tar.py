"""Shards of WebDataset: tar files. The files of a sample follow one another, with equal names up to the first dot."""

from __future__ import annotations

import io
import json
import math
import tarfile
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from covey.data.storage.formats import Format, OpenShard, Sample, listed, wanted_columns
from covey.data.storage.index import ShardEntry
from covey.data.storage.source import ShardSource

BLOCK = tarfile.BLOCKSIZE
WINDOW = 1 << 18  # bytes that are read at once while headers are looked for
LONGEST = 1 << 16  # bytes of a name
PICKLED = ("pyd", "pickle", "pkl", "pt", "pth", "npz")


class TarFile(NamedTuple):
    """A file in a tar file."""

    name: str
    start: int
    size: int


class Window:
    """Reads a shard from front to back, a window at a time."""

    def __init__(self, source: ShardSource, entry: ShardEntry) -> None:
        self.source, self.entry = source, entry
        self.first, self.data = 0, b""

    def read(self, start: int, stop: int) -> bytes:
        if stop > self.entry.size:
            raise self.source.error(self.entry.name, "ends in the middle of a file: it is truncated")
        if start < self.first or stop > self.first + len(self.data):
            self.first = start
            self.data = self.source.read(self.entry.name, start, min(self.entry.size, max(stop, start + WINDOW)))
        return self.data[start - self.first : stop - self.first]


def members(source: ShardSource, entry: ShardEntry) -> Iterator[TarFile]:
    """The plain files of a tar file. Folders are skipped; links and devices are refused."""
    window, at, longer, sparse = Window(source, entry), 0, "", False
    while at + BLOCK <= entry.size:
        block = window.read(at, at + BLOCK)
        if not block.strip(b"\0"):
            return
        header = _header(source, entry, at, block)
        start = at + BLOCK
        if header.size < 0 or start + header.size > entry.size:
            raise source.error(entry.name, f"has a file {header.name!r} of {header.size} bytes, which do not fit in it")
        if header.type in (tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME):
            if header.size > LONGEST:
                raise source.error(entry.name, f"has a name of {header.size} bytes")
            name, more = _long_name(header.type, window.read(start, start + header.size))
            longer, sparse = name or longer, sparse or more
        elif sparse or header.type == tarfile.GNUTYPE_SPARSE:
            name = longer or header.name
            raise source.error(entry.name, f"has {name!r}, a sparse file: write the tar file anew, without --sparse")
        elif header.isreg():
            yield TarFile(longer or header.name, start, header.size)
            longer = ""
        elif header.type == tarfile.DIRTYPE:
            longer = ""
        elif header.type != tarfile.XGLTYPE:
            raise source.error(entry.name, f"has {header.name!r}, which is a link or a device: only files are read")
        at = start + -(-header.size // BLOCK) * BLOCK
    raise source.error(entry.name, "has no end: it is truncated, or no tar file")


def _header(source: ShardSource, entry: ShardEntry, at: int, block: bytes) -> tarfile.TarInfo:
    try:
        return tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except tarfile.HeaderError as error:
        raise source.error(entry.name, f"has no tar header at byte {at}: {error}") from None


def _long_name(kind: bytes, data: bytes) -> tuple[str, bool]:
    """The name of the next file, and whether it is sparse: without its empty parts."""
    if kind == tarfile.GNUTYPE_LONGNAME:
        return data.rstrip(b"\0").decode("utf-8", "surrogateescape"), False
    found = pax_records(data)
    name = found.get(b"GNU.sparse.name") or found.get(b"path", b"")
    sparse = any(key.startswith(b"GNU.sparse.") for key in found)
    if b"size" in found and not sparse:
        raise ValueError("a file of more than 8 GiB cannot be read")
    return name.decode("utf-8", "surrogateescape"), sparse


def pax_records(data: bytes) -> dict[bytes, bytes]:
    """The records of an extended header, such as "23 path=folder/name": each begins with its own length."""
    found, at = {}, 0
    while at < len(data):
        digits = data[at : at + 8].partition(b" ")[0]
        length = int(digits) if digits.isdigit() else 0
        key, equals, value = data[at + len(digits) + 1 : at + length].partition(b"=")
        if not key or not equals or at + length > len(data) or not value.endswith(b"\n"):
            raise ValueError(f"its extended header has no record at byte {at}")
        found[key] = value[:-1]
        at += length
    return found


def split_name(name: str) -> tuple[str, str]:
    """The sample and the column of a file: WebDataset divides the last part of a path at its first dot."""
    folder, slash, last = name.rpartition("/")
    stem, _, column = last.partition(".")
    return folder + slash + stem, column.lower()


class OpenTar(OpenShard):
    """Where the files of each sample lie: sample i has the rows of `files` from `ends[i]` up to `ends[i + 1]`."""

    def __init__(self, source: ShardSource, entry: ShardEntry, wanted: tuple[str, ...]) -> None:
        self.source, self.name = source, entry.name
        self.keys, found = grouped(source, entry)
        self.samples = len(self.keys)
        everything = dict.fromkeys(column for sample in found for column in sample)
        self.columns = wanted_columns(source, entry.name, everything, wanted)
        self.needed = len(set(wanted))
        self.decoders = [_decoder(source, entry.name, column) for column in self.columns]
        number = {column: at for at, column in enumerate(self.columns)}
        rows = [
            sorted((number[column], file.start, file.size) for column, file in sample.items() if column in number)
            for sample in found
        ]
        self.ends = np.cumsum([0, *map(len, rows)])
        self.files = np.array([file for row in rows for file in row], dtype=np.int64).reshape(-1, 3)

    def sample(self, number: int) -> Sample:
        there = self.files[self.ends[number] : self.ends[number + 1]].tolist()
        if len(there) < self.needed:
            raise ValueError(
                f"{self.keys[number]} has only {', '.join(self.columns[at] for at, _, _ in there) or 'other columns'}"
            )
        first = min(start for _, start, _ in there)
        data = self.source.read(self.name, first, max(start + size for _, start, size in there))
        return {
            self.columns[at]: self.decoders[at](data[start - first : start - first + size]) for at, start, size in there
        }


def grouped(source: ShardSource, entry: ShardEntry) -> tuple[list[str], list[dict[str, TarFile]]]:
    """The samples of a shard, in its order; two samples of one name, or a column twice, are refused."""
    keys: list[str] = []
    found: list[dict[str, TarFile]] = []
    for member in members(source, entry):
        key, column = split_name(member.name)
        if not column or key.rpartition("/")[2] == "":
            continue  # such as README, or .hidden
        if not keys or keys[-1] != key:
            keys.append(key)
            found.append({})
        if column in found[-1]:
            raise source.error(entry.name, f"has {member.name!r} twice")
        found[-1][column] = member
    if not keys or len(set(keys)) < len(keys):
        raise source.error(entry.name, "has no samples, or files of one sample that do not follow one another")
    return keys, found


def _decoder(source: ShardSource, name: str, column: str) -> Callable[[bytes], Any]:
    last = column.rpartition(".")[2]
    if last in PICKLED:
        raise source.error(
            name, f"has a column {column!r}: pickles run whatever they contain, and are refused; choose columns=…"
        )
    if last in ("gz", "bz2", "xz", "zst"):
        raise source.error(name, f"has a column {column!r}, which is compressed: covey reads it as it is written")
    return DECODERS.get(last, bytes)


def array(data: bytes) -> Any:
    """An array in numpy's format, whose size is checked before it is made."""
    file = io.BytesIO(data)
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, by_column, dtype = read(file)
    if dtype.hasobject:
        raise ValueError("an array of Python objects is a pickle, and refused")
    rest = len(data) - file.tell()
    if math.prod(shape) * dtype.itemsize != rest or dtype.itemsize == 0:
        raise ValueError(f"an array of shape {shape} has not {rest} bytes")
    return np.frombuffer(data, dtype, offset=file.tell()).reshape(shape, order="F" if by_column else "C").copy()


DECODERS: dict[str, Callable[[bytes], Any]] = {
    **dict.fromkeys(("txt", "text", "transcript"), bytes.decode),
    **dict.fromkeys(("cls", "cls2", "class", "count", "index", "inx", "id"), lambda data: int(data[:100])),
    **dict.fromkeys(("json", "jsn"), json.loads),
    "npy": array,
}
"""By the end of a column's name, as WebDataset has it; other columns are bytes."""


def entries(source: ShardSource) -> tuple[ShardEntry, ...]:
    """All `.tar` files; samples are counted when a shard is opened."""
    return listed(source, ".tar")


TAR = Format(".tar", OpenTar, entries)
