"""Shards in the safetensors format: the tensors of a file are columns, and their rows are samples."""

from __future__ import annotations

import math
import struct
from typing import Any

import msgspec
import torch

from covey.data.storage.formats import Format, OpenShard, Sample, listed, wanted_columns
from covey.data.storage.index import ShardEntry
from covey.data.storage.source import ShardSource
from covey.decoding import WireFormat

LONGEST = 1 << 24  # bytes of a header
DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip


class TensorColumn(msgspec.Struct):
    """A tensor, as the header describes it."""

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


HEADER: WireFormat[dict[str, Any]] = WireFormat("header of a safetensors file", dict[str, Any], "json", LONGEST)


def tensors_of(source: ShardSource, name: str) -> tuple[int, dict[str, TensorColumn]]:
    """Where the numbers begin, and each tensor; what does not fit in the file is refused."""
    if source.size(name) < 8:
        raise source.error(name, "is no safetensors file: it has fewer than 8 bytes")
    (length,) = struct.unpack("<Q", source.read(name, 0, 8))
    if length > min(LONGEST, source.size(name) - 8):
        raise source.error(name, f"says that its header has {length} bytes, which it has not")
    header = HEADER.read(source.read(name, 8, 8 + length), f"shard {name!r}")
    header.pop("__metadata__", None)
    try:
        found = {key: msgspec.convert(value, TensorColumn) for key, value in header.items()}
    except msgspec.ValidationError as error:
        raise source.error(name, f"has a header that is no safetensors header: {error}") from None
    for key, tensor in found.items():
        first, last = tensor.data_offsets
        if tensor.dtype not in DTYPES or not tensor.shape or min(tensor.shape) < 1:
            raise source.error(name, f"has {key!r} of {tensor.dtype} and shape {tensor.shape}: it has no rows")
        size = math.prod(tensor.shape) * DTYPES[tensor.dtype].itemsize
        if not 0 <= first <= last <= source.size(name) - 8 - length or last - first != size:
            raise source.error(name, f"says that {key!r}, of {size} bytes, lies at {first} to {last}, where it is not")
    return 8 + length, found


class OpenTensors(OpenShard):
    """Row i of every tensor is sample i."""

    def __init__(self, source: ShardSource, entry: ShardEntry, wanted: tuple[str, ...]) -> None:
        self.source, self.name = source, entry.name
        begin, there = tensors_of(source, entry.name)
        self.columns = wanted_columns(source, entry.name, there, wanted)
        lengths = {there[column].shape[0] for column in self.columns}
        if len(lengths) != 1:
            raise source.error(entry.name, "has tensors of different lengths: row i of each must be sample i")
        (self.samples,) = lengths
        self.rows = [
            (name, begin + there[name].data_offsets[0], DTYPES[there[name].dtype], there[name].shape[1:])
            for name in self.columns
        ]

    def sample(self, number: int) -> Sample:
        found = {}
        for name, begin, dtype, shape in self.rows:
            size = math.prod(shape) * dtype.itemsize
            data = self.source.read(self.name, begin + number * size, begin + (number + 1) * size)
            found[name] = torch.frombuffer(bytearray(data), dtype=dtype).reshape(shape)
        return found


def entries(source: ShardSource) -> tuple[ShardEntry, ...]:
    """All `.safetensors` files."""
    return listed(source, ".safetensors")


TENSORS = Format(".safetensors", OpenTensors, entries)
