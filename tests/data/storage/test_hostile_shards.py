"""Shards that somebody made to do harm, or that are damaged: each is refused by name, and nothing is made of it."""

from __future__ import annotations

import io
import json
import os
import random
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import covey
from covey.data.storage.stored import FORMATS, StoredData
from covey.errors import CoveyError, PlanError, ShardError
from tests.data.storage.test_formats import packed


class Trap:
    """Unpickling it makes a file."""

    def __init__(self, where: Path) -> None:
        self.where = where

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.where),)


def everything(place: Path, format: str, columns: tuple[str, ...] = ()) -> list[Any]:
    data = covey.data.remote(place, format, columns)
    return [data[number] for number in range(len(data))]


def tar(place: Path, files: dict[str, bytes], change: Callable[[tarfile.TarInfo], None] = lambda info: None) -> Path:
    place.mkdir(exist_ok=True)
    with tarfile.open(place / "a.tar", "w") as file:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            change(info)
            file.addfile(info, io.BytesIO(data))
    return place


def test_a_long_name_is_that_of_one_file(tmp_path: Path) -> None:
    place = tar(tmp_path / "shards", {f"{'long' * 40}.txt": b"one", "short.txt": b"two"})
    assert everything(place, "tar") == [{"txt": "one"}, {"txt": "two"}]


def npy(shape: str, kind: str = "<f4", rest: bytes = b"\0" * 16) -> bytes:
    header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + rest


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"0.pkl": b"cposix\nsystem\n"}, "has a column 'pkl': pickles run whatever they contain, and are refused"),
        ({"0.pth": b""}, "pickles"),
        ({"0.x.npz": b""}, "pickles"),
        ({"0.x.gz": b""}, "'x.gz', which is compressed"),
        ({"0.x.npy": npy("(4,)", "|O")}, "damaged sample 0: an array of Python objects is a pickle"),
        ({"0.x.npy": npy("(1099511627776,)")}, r"an array of shape \(1099511627776,\) has not 16 bytes"),
        ({"0.x.npy": npy("(0, 3)", "|V0")}, "has not 16 bytes"),
        ({"0.x.npy": npy("__import__('os').getpid()")}, "damaged sample 0"),
        ({"0.json": b"[" * 100_000}, "damaged sample 0"),
        ({"0.cls": b"9" * 5000 + b"x"}, None),
        ({"0.txt": b"\xff"}, "damaged sample 0"),
        ({"0.a": b"1", "1.a": b"2", "0.b": b"3"}, "files of one sample that do not follow one another"),
        ({"README": b""}, "has no samples"),
    ],
)
def test_hostile_files_in_a_tar_file(tmp_path: Path, files: dict[str, bytes], said: str | None) -> None:
    place = tar(tmp_path / "set", files)
    if said is None:
        assert everything(place, "tar") == [{"cls": int("9" * 100)}], "a number is at most 100 digits"
        return
    with pytest.raises(ShardError, match=f"shard 'a.tar' .*{said}"):
        everything(place, "tar")


def test_files_that_climb_are_only_names(tmp_path: Path) -> None:
    place = tar(tmp_path / "set", {"../../0.txt": b"a", "/etc/1.txt": b"b"})
    assert everything(place, "tar") == [{"txt": "a"}, {"txt": "b"}]
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a.tar", "set"]


def test_links_in_a_tar_file_are_refused(tmp_path: Path) -> None:
    def link(info: tarfile.TarInfo) -> None:
        info.type, info.linkname, info.size = tarfile.SYMTYPE, "/etc/passwd", 0

    with pytest.raises(ShardError, match="is a link or a device"):
        everything(tar(tmp_path / "set", {"0.txt": b""}, link), "tar")


def test_sizes_that_lie_in_a_tar_file(tmp_path: Path) -> None:
    place = tar(tmp_path / "set", {"0.txt": b"abc"})
    data = bytearray((place / "a.tar").read_bytes())
    for size in (1 << 20, (1 << 33) - 1):
        info = tarfile.TarInfo("0.txt")
        info.size = size
        data[:512] = info.tobuf(tarfile.GNU_FORMAT)
        (place / "a.tar").write_bytes(data)
        with pytest.raises(ShardError, match=f"of {size} bytes, which do not fit"):
            everything(place, "tar")
    (place / "a.tar").write_bytes(b"\x1f\x8b" + os.urandom(1000))
    with pytest.raises(ShardError, match="no tar header at byte 0"):
        everything(place, "tar")


def mds(place: Path, **changes: Any) -> Path:
    """Ten samples, with changes to what the header of the shard says."""
    covey.data.pack([{"x": number, "s": "a"} for number in range(10)], place, "mds")
    (place / "shards.json").unlink()
    file = place / "shard.00000.mds"
    data = file.read_bytes()
    first = int(np.frombuffer(data[4:8], "<u4")[0])
    header = json.loads(data[48:first]) | changes
    text = json.dumps(header).encode()
    offsets = np.frombuffer(data[4:48], "<u4") - first + 48 + len(text)
    file.write_bytes(data[:4] + offsets.astype("<u4").tobytes() + text + data[first:])
    index = json.loads((place / "index.json").read_bytes())
    index["shards"][0]["raw_data"]["bytes"] = file.stat().st_size
    (place / "index.json").write_text(json.dumps(index))
    return place


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, ""),
        ({"column_encodings": ["pkl", "int"]}, "has a column 's' of 'pkl': pickles run whatever they contain"),
        ({"column_encodings": ["str", "ndarray:object"]}, "an array is of"),
        ({"column_encodings": ["str", "ndarray:int64:-1"]}, "a shape such as"),
        ({"column_encodings": ["str", "ndarray:int64:99999999999,99999999999"]}, "damaged sample 0: an array of shape"),
        ({"column_encodings": ["str", "pil"]}, "covey reads"),
        ({"column_sizes": [None, 9]}, "column 'x' runs over the end of the sample"),
        ({"column_sizes": [None, 7]}, "damaged sample 0: unpack requires a buffer of 8 bytes"),
        ({"column_encodings": ["str", "bytes"], "column_sizes": [None, 7]}, "1 bytes are left over"),
        ({"column_encodings": ["str", "int32"]}, "damaged sample 0"),
        ({"column_sizes": [None, -8]}, "cannot be read"),
        ({"column_names": ["x", "x"]}, "lists them twice"),
        ({"column_names": []}, "without columns"),
    ],
)
def test_hostile_headers_of_mds(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    place = mds(tmp_path / "set", **changes)
    if not said:
        assert everything(place, "mds")[9] == {"s": "a", "x": 9}
        return
    with pytest.raises(ShardError, match=f"shard 'shard.00000.mds' .*{said}"):
        everything(place, "mds")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"samples": 11}, "has 10 samples; its index says 11"),
        ({"zip_data": {"basename": "a", "bytes": 1}}, "is compressed"),
        ({"format": "csv"}, "is csv, version 2; covey reads mds"),
        ({"raw_data": {"basename": "../../secret", "bytes": 100}}, "must not be called '../../secret'"),
        ({"raw_data": {"basename": "shard.00000.mds", "bytes": 1 << 50}}, "truncated, or changed"),
        ({"samples": "many"}, "invalid index of MDS shards"),
    ],
)
def test_hostile_indexes_of_mds(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    place = mds(tmp_path / "set")
    index = json.loads((place / "index.json").read_bytes())
    index["shards"][0] |= change
    (place / "index.json").write_text(json.dumps(index))
    with pytest.raises(CoveyError, match=said):
        everything(place, "mds")


def test_a_hash_of_mosaicml_is_checked(tmp_path: Path) -> None:
    place = mds(tmp_path / "set")
    index = json.loads((place / "index.json").read_bytes())
    index["shards"][0]["raw_data"]["hashes"] = {"xxh64": "?", "sha1": "0" * 40}
    (place / "index.json").write_text(json.dumps(index))
    with pytest.raises(ShardError, match="shard 'shard.00000.mds' is damaged, or changed"):
        everything(place, "mds")


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ({"x": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 8]}}, "lies at 0 to 8, where it is not"),
        ({"x": {"dtype": "F32", "shape": [2], "data_offsets": [1 << 40, (1 << 40) + 8]}}, "where it is not"),
        ({"x": {"dtype": "F32", "shape": [-1, -2], "data_offsets": [0, 8]}}, "it has no rows"),
        ({"x": {"dtype": "object", "shape": [2], "data_offsets": [0, 8]}}, "it has no rows"),
        ({"x": {"dtype": "F32", "shape": [], "data_offsets": [0, 4]}}, "it has no rows"),
        ({"x": 3}, "no safetensors header"),
        ({}, "different lengths"),
    ],
)
def test_hostile_headers_of_safetensors(tmp_path: Path, header: dict[str, Any], said: str) -> None:
    text = json.dumps(header).encode()
    (tmp_path / "a.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(8))
    with pytest.raises(ShardError, match=f"shard 'a.safetensors' .*{said}"):
        everything(tmp_path, "safetensors")


@pytest.mark.parametrize(
    "data", [b"", b"\xff" * 8, struct.pack("<Q", 1 << 62) + b"{}", struct.pack("<Q", 4) + b"[[[[xx"]
)
def test_what_is_no_safetensors_file(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.safetensors").write_bytes(data)
    with pytest.raises(CoveyError, match="a.safetensors"):
        everything(tmp_path, "safetensors")


def test_hostile_parquet(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", exc_type=ImportError)
    covey.data.pack([{"x": 1.0}] * 10, tmp_path / "set", "parquet")
    (tmp_path / "set/shards.json").unlink()
    file = tmp_path / "set/shard.00000.parquet"
    whole = file.read_bytes()
    for data in (b"PAR1", whole[:-20], whole[:-8] + struct.pack("<I", 1 << 31) + b"PAR1"):
        file.write_bytes(data)
        with pytest.raises(ShardError, match="shard 'shard.00000.parquet' is no Parquet file"):
            everything(tmp_path / "set", "parquet")
    missing = [{"x": 1.0}, {"x": 2.0}]
    covey.data.pack(missing, tmp_path / "null", "parquet")
    import pyarrow as arrow
    from pyarrow import parquet

    parquet.write_table(arrow.table({"x": [1.0, None]}), tmp_path / "null/shard.00000.parquet")
    (tmp_path / "null/shards.json").unlink()
    with pytest.raises(ShardError, match=r"damaged sample 1: a value is missing \(null\)"):
        everything(tmp_path / "null", "parquet")


def test_a_row_group_that_grows_when_it_is_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow", exc_type=ImportError)
    covey.data.pack([{"x": f"{number:a>1000}"} for number in range(1000)], tmp_path / "set", "parquet")
    assert (tmp_path / "set/shard.00000.parquet").stat().st_size < 100_000, "a bomb: 1 MB of text in a few bytes"
    monkeypatch.setattr("covey.data.storage.parquet.MOST", 100_000)
    with pytest.raises(ShardError, match="more than 100000 bytes"):
        everything(tmp_path / "set", "parquet")


@pytest.mark.parametrize("format", ["mds", "tar", "safetensors", "parquet"])
def test_flipped_and_missing_bytes_bring_nothing_but_refusals(tmp_path: Path, format: str) -> None:
    """Without hashes: a sample is read as it is, or the shard is named; with them each change is found."""
    if format == "parquet":
        pytest.importorskip("pyarrow", exc_type=ImportError)
    packed(tmp_path / "set", format)
    name = f"shard.00001{FORMATS[format].suffix}"
    file, index = tmp_path / "set" / name, (tmp_path / "set/shards.json").read_bytes()
    whole, rng = file.read_bytes(), random.Random(5)
    refused = []
    for change in range(60):
        data = bytearray(whole[: rng.randrange(len(whole))] if change % 3 == 0 else whole)
        for _ in range(rng.choice((1, 1, 8))):
            if change % 3:
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        file.write_bytes(data)
        (tmp_path / "set/shards.json").write_bytes(index)
        with pytest.raises(ShardError, match=f"shard '{name}'"):
            everything(tmp_path / "set", format)
        (tmp_path / "set/shards.json").unlink()
        try:
            everything(tmp_path / "set", format)
        except CoveyError as error:
            refused.append(str(error))
    assert refused and all("shard" in said for said in refused)


def test_nothing_is_unpickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pickle

    trap = pickle.dumps(Trap(tmp_path / "sprung"))
    with pytest.raises(ShardError):
        everything(tar(tmp_path / "a", {"0.pkl": trap}), "tar")
    with pytest.raises(ShardError):
        everything(tar(tmp_path / "b", {"0.npy": npy("(1,)", "|O", trap)}), "tar")
    with pytest.raises(PlanError, match="pickles are refused"):
        covey.data.pack([{"x": Trap(tmp_path / "sprung")}], tmp_path / "c")
    torch.save({"x": 1}, tmp_path / "x.pt")
    with pytest.raises(ShardError, match="pickles"):
        everything(tar(tmp_path / "d", {"0.pt": (tmp_path / "x.pt").read_bytes()}), "tar")
    assert not (tmp_path / "sprung").exists()
    assert isinstance(covey.data.remote(tar(tmp_path / "e", {"0.txt": b"a"}), "tar"), StoredData)
