"""Shards of MosaicML's StreamingDataset (MDS, version 2): `index.json` and one file for each shard."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from covey.data.storage.formats import Format, OpenShard, Sample, wanted_columns
from covey.data.storage.index import HASHES, ShardEntry
from covey.data.storage.source import ShardSource
from covey.decoding import WireFormat
from covey.errors import PlanError, ShardError

INDEX = "index.json"
VALUE_DTYPES = {
    8: "uint8", 9: "int8", 16: "uint16", 17: "int16", 18: "float16", 32: "uint32", 33: "int32", 34: "float32",
    64: "uint64", 65: "int64", 66: "float64",
}  # fmt: skip
"""By the byte that stands for a dtype where a column does not fix it."""

SCALARS = set(VALUE_DTYPES.values())
AS_BYTES = ("bytes", "jpeg", "png")


class MdsFile(msgspec.Struct):
    """A file of a shard, as `index.json` describes it."""

    basename: str
    bytes: int
    hashes: dict[str, str] = {}


class MdsShard(msgspec.Struct):
    """A shard, as `index.json` describes it."""

    column_names: list[str]
    column_encodings: list[str]
    column_sizes: list[int | None]
    raw_data: MdsFile
    samples: int
    format: str
    version: int
    zip_data: MdsFile | None = None
    compression: str | None = None


class MdsIndex(msgspec.Struct):
    """All shards, as `index.json` lists them."""

    shards: list[MdsShard]


MDS_INDEX: WireFormat[MdsIndex] = WireFormat("index of MDS shards", MdsIndex, "json")
MDS_HEADER: WireFormat[dict[str, Any]] = WireFormat("header of an MDS shard", dict[str, Any], "json")


def entries(source: ShardSource) -> tuple[ShardEntry, ...]:
    """The shards that `index.json` lists; a hash of a whole file makes the file one stripe."""
    shards = MDS_INDEX.read(source.whole(INDEX, MDS_INDEX.most), source.place).shards
    if not shards:
        raise ShardError(f"{source.place}: {INDEX} lists no shard")
    return tuple(_entry(source, shard) for shard in shards)


def _entry(source: ShardSource, shard: MdsShard) -> ShardEntry:
    name = shard.raw_data.basename
    if (shard.format, shard.version) != ("mds", 2):
        raise source.error(name, f"is {shard.format}, version {shard.version}; covey reads mds, version 2")
    if shard.zip_data is not None or shard.compression:
        raise source.error(name, "is compressed, so that no sample can be read by itself: write it without compression")
    size = shard.raw_data.bytes
    bare = ShardEntry(name=name, size=size, samples=shard.samples)
    known = [(algorithm, value) for algorithm, value in shard.raw_data.hashes.items() if algorithm in HASHES]
    if not known:
        return bare
    algorithm, value = known[0]
    return msgspec.structs.replace(bare, stripe=max(size, 4096), hashes=(value,), algorithm=algorithm)


class OpenMds(OpenShard):
    """`n: uint32 | offsets: (n + 1) * uint32 | header in JSON | samples`."""

    def __init__(self, source: ShardSource, entry: ShardEntry, wanted: tuple[str, ...]) -> None:
        self.source, self.name = source, entry.name
        (self.samples,) = struct.unpack("<I", source.read(entry.name, 0, 4))
        table = 4 + 4 * (self.samples + 1)
        if not self.samples or table > entry.size:
            raise source.error(entry.name, f"says that it has {self.samples} samples, which its size does not allow")
        self.offsets = np.frombuffer(source.read(entry.name, 4, table), "<u4").astype(np.int64)
        if self.offsets[0] < table or self.offsets[-1] != entry.size or (np.diff(self.offsets) < 0).any():
            raise source.error(entry.name, "says that samples lie outside of it")
        header = MDS_HEADER.read(source.read(entry.name, table, int(self.offsets[0])), f"shard {entry.name!r}")
        self.fields = _fields(source, entry.name, header)
        self.columns = wanted_columns(source, entry.name, {name: None for name, _, _ in self.fields}, wanted)
        self.free = struct.Struct(f"<{sum(size is None for _, _, size in self.fields)}I")

    def sample(self, number: int) -> Sample:
        data = self.source.read(self.name, int(self.offsets[number]), int(self.offsets[number + 1]))
        sizes = iter(self.free.unpack_from(data))
        at, found = self.free.size, {}
        for name, decode, fixed in self.fields:
            size = next(sizes) if fixed is None else fixed
            if at + size > len(data):
                raise ValueError(f"column {name!r} runs over the end of the sample")
            if name in self.columns:
                found[name] = decode(data[at : at + size])
            at += size
        if at != len(data):
            raise ValueError(f"{len(data) - at} bytes are left over")
        return found


def _fields(
    source: ShardSource, name: str, header: dict[str, Any]
) -> list[tuple[str, Callable[[bytes], Any], int | None]]:
    names, encodings = header.get("column_names", []), header.get("column_encodings", [])
    sizes = header.get("column_sizes", [])
    if not names or not len(names) == len(encodings) == len(sizes) or len(set(map(str, names))) < len(names):
        raise source.error(name, "has a header without columns, or one that lists them twice")
    fields = []
    for column, encoding, size in zip(names, encodings, sizes, strict=True):
        if not (isinstance(column, str) and isinstance(encoding, str) and (size is None or 0 <= int(size) < 1 << 32)):
            raise source.error(name, f"has a column {column!r} of {encoding!r} that cannot be read")
        try:
            fields.append((column, _decoder(encoding), size))
        except PlanError as error:
            raise source.error(name, f"has a column {column!r} of {encoding!r}: {error}") from None
    return fields


def _decoder(encoding: str) -> Callable[[bytes], Any]:
    kind, _, rest = encoding.partition(":")
    if encoding in AS_BYTES:
        return bytes
    if encoding in SCALARS:
        dtype = np.dtype(encoding)
        return lambda data: np.frombuffer(data, dtype).reshape(())[()]
    if kind == "ndarray":
        return _array_decoder(rest)
    simple: dict[str, Callable[[bytes], Any]] = {
        "str": bytes.decode, "int": lambda data: struct.unpack("<q", data)[0], "json": json.loads,
        "str_int": lambda data: int(data[:100]), "str_float": float,
    }  # fmt: skip
    if encoding in simple:
        return simple[encoding]
    if encoding == "pkl":
        raise PlanError("pickles run whatever they contain, and are refused; write the column in another encoding")
    raise PlanError(f"covey reads {', '.join([*simple, *AS_BYTES, 'ndarray', *sorted(SCALARS)])}")


def _array_decoder(described: str) -> Callable[[bytes], Any]:
    """`dtype:shape`, each of which may be missing: then it stands before the numbers."""
    dtype, _, shape = described.partition(":")
    if (dtype and dtype not in SCALARS) or not all(part.isdecimal() for part in shape.split(",") if shape):
        raise PlanError(f"an array is of {', '.join(sorted(SCALARS))}, and of a shape such as 3,32,32")
    fixed = tuple(int(part) for part in shape.split(",")) if shape else None

    def decode(data: bytes) -> Any:
        at = 0
        kind = np.dtype(dtype or VALUE_DTYPES[data[0]])
        at += not dtype
        dims = fixed
        if dims is None:
            axes, width = data[at] >> 2, 1 << (data[at] & 3)
            dims = tuple(int(dim) for dim in np.frombuffer(data[at + 1 : at + 1 + axes * width], f"<u{width}"))
            at += 1 + axes * width
        if math.prod(dims) * kind.itemsize != len(data) - at:
            raise ValueError(f"an array of shape {dims} has not {len(data) - at} bytes")
        return np.frombuffer(data, kind, offset=at).reshape(dims).copy()

    return decode


MDS = Format(".mds", OpenMds, entries)
