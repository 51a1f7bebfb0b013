"""Parquet files that are small, and would be large in memory: the headers of their pages tell before they are read."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import covey
from covey.data.storage.parquet import KEPT
from covey.data.storage.parquet_pages import DELTA_BYTE_ARRAY, ThriftReader
from covey.errors import ShardError
from tests.late_imports import LateImport

arrow, parquet = LateImport("pyarrow"), LateImport("pyarrow.parquet")

MB = 1 << 20
POOLS: list[Any] = []  # what is in memory needs its pool


@contextmanager
def counted() -> Iterator[Any]:
    """What arrow takes."""
    usual = arrow.default_memory_pool()
    POOLS.append(arrow.proxy_memory_pool(usual))
    arrow.set_memory_pool(POOLS[-1])
    try:
        yield POOLS[-1]
    finally:
        arrow.set_memory_pool(usual)


def shard(place: Path, columns: dict[str, Any], **how: Any) -> int:
    """Write one, and its size."""
    out = io.BytesIO()
    parquet.write_table(arrow.table(columns), out, **{"store_schema": False, "compression": "brotli", **how})
    (place / "a.parquet").write_bytes(out.getvalue())
    return len(out.getvalue())


def same(value: bytes, rows: int) -> Any:
    """One value, of which the file has a number for each row."""
    return arrow.DictionaryArray.from_arrays(arrow.array([0] * rows, arrow.int32()), arrow.array([value]))


def test_a_value_that_is_written_once_for_many_rows_is_in_memory_once(tmp_path: Path) -> None:
    assert shard(tmp_path, {"x": same(b"a" * MB, 4096)}) < 300, "4 GiB, if each row had its own"
    with counted() as pool:
        data = covey.data.remote(tmp_path, "parquet")
        assert data[7] == data[4095] == {"x": b"a" * MB}
    assert pool.max_memory() < 32 * MB


def test_lists_of_such_values_too(tmp_path: Path) -> None:
    many = arrow.ListArray.from_arrays(arrow.array([0, 4096], arrow.int32()), same(b"a" * MB, 4096))
    assert shard(tmp_path, {"x": many}) < 600
    with counted() as pool:
        assert len(covey.data.remote(tmp_path, "parquet")) == 1
    assert pool.max_memory() < 32 * MB


SMALL = "row group 0 that takes more than 33554432 bytes"
GROWS = "page of [0-9]+ bytes, which say that they are 7[0-9]+: at most 67108864 are made of so few"
BOMBS: dict[str, tuple[Callable[[], Any], dict[str, Any], str]] = {
    "dictionary": (lambda: same(b"a" * (70 * MB), 10), {"compression": "zstd"}, GROWS),
    "page": (lambda: [b"a" * MB] * 70, {"compression": "zstd", "use_dictionary": False}, GROWS),
    "numbers": (lambda: np.zeros(3 * MB), {"row_group_size": 4 * MB}, SMALL),
    "list": (lambda: arrow.ListArray.from_arrays(arrow.array([0, 3 * MB], arrow.int32()), np.zeros(3 * MB)), {}, SMALL),
    "prefixes": (
        lambda: [[b"a" * 60_000] * 700],
        {"use_dictionary": False, "column_encoding": {"x.list.element": "DELTA_BYTE_ARRAY"}},
        SMALL,
    ),
    "fixed": (lambda: arrow.array([b"a" * 60_000] * 700, arrow.binary(60_000)), {}, SMALL),
}


@pytest.mark.parametrize("name", BOMBS)
def test_what_would_be_too_large_is_refused_before_it_is_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    values, how, said = BOMBS[name]
    assert shard(tmp_path, {"x": values()}, **how) < 50_000
    monkeypatch.setattr("covey.data.storage.parquet.MOST", 32 * MB)
    with counted() as pool, pytest.raises(ShardError, match=f"shard 'a.parquet' has a {said}"):
        covey.data.remote(tmp_path, "parquet")[0]
    assert pool.max_memory() < MB


def test_values_that_repeat_those_before_them_are_decoded_a_few_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    how = {"use_dictionary": False, "column_encoding": "DELTA_BYTE_ARRAY"}
    assert shard(tmp_path, {"x": [b"a" * 100_000] * 700}, **how) < 5000
    monkeypatch.setattr("covey.data.storage.parquet.MOST", 32 * MB)
    monkeypatch.setattr("covey.data.storage.parquet.AT_ONCE", 4 * MB)
    with counted() as pool, pytest.raises(ShardError, match="row group 0 that takes more than 33554432 bytes"):
        covey.data.remote(tmp_path, "parquet")[0]
    assert 32 * MB < pool.max_memory() < 80 * MB


def test_headers_of_pages_that_lie_bring_samples_or_refusals_and_never_much_memory(tmp_path: Path) -> None:
    shard(tmp_path, {"x": ["a", "b", "a"], "y": [[1, 2], [3], []]}, compression="none")
    path = tmp_path / "a.parquet"
    whole = path.read_bytes()
    meta = parquet.ParquetFile(path).metadata.row_group(0)
    starts = {meta.column(number).data_page_offset for number in range(2)} | {4}
    refused: list[str] = []
    with counted() as pool:
        for at in sorted({start + more for start in starts for more in range(16)}):
            for value in (0x00, 0x7E, 0xFF):
                path.write_bytes(whole[:at] + bytes([value]) + whole[at + 1 :])
                try:
                    data = covey.data.remote(tmp_path, "parquet")
                    assert len([data[number] for number in range(len(data))]) == 3
                except ShardError as error:
                    refused.append(str(error))
    assert len(refused) > 20 and all("'a.parquet'" in line for line in refused) and pool.max_memory() < 200 * MB


@pytest.mark.parametrize(("values", "promised"), [(["a", "b", "a"], True), (["a" * 100] * 50, False)])
def test_a_dictionary_that_is_there_or_not_unlike_the_metadata_says_is_refused(
    tmp_path: Path, values: list[str], promised: bool
) -> None:
    path, files, columns = tmp_path / "a.parquet", [], []
    for use_dictionary in (promised, not promised):
        shard(tmp_path, {"x": values}, use_dictionary=use_dictionary, compression="none")
        size = parquet.ParquetFile(path).metadata.row_group(0).column(0).total_compressed_size
        files.append(path.read_bytes())
        columns.append(files[-1][4 : 4 + size])
    (whole, _), (own, other) = files, columns
    assert len(other) <= len(own), "it has room for the other's pages"
    path.write_bytes(whole[:4] + other.ljust(len(own), b"\0") + whole[4 + len(own) :])
    with pytest.raises(ShardError, match="has other pages of 'x' than it says"):
        covey.data.remote(tmp_path, "parquet")[0]


def field(number: int, kind: int, value: bytes) -> bytes:
    """One of a structure of Thrift, by its number."""
    return bytes([kind]) + varint(number << 1) + value


def varint(number: int) -> bytes:
    return bytes([number & 127 | 128]) + varint(number >> 7) if number > 127 else bytes([number])


def numbers(fields: dict[int, int]) -> bytes:
    return b"".join(field(number, 5, varint(value << 1)) for number, value in fields.items())


def twofold(page: dict[int, Any], lie: str) -> bytes:
    """The header of a page of version 2, as Arrow reads it; others may read that its values do not repeat."""
    details, sizes = {number: page[8][number] for number in (1, 2, 3, 4, 5, 6)}, {2: page[2], 3: page[3]}
    plain, other, encoding = field(5, 12, numbers({1: details[1], 2: 0, 3: 3, 4: 3}) + b"\0"), b"", details.pop(4)
    match lie:
        case "fields of two kinds":
            other = plain
        case "a kind beyond 32 bits":
            return numbers({1: 3 + (1 << 32)} | sizes) + field(8, 12, numbers(details | {4: encoding}) + b"\0") + b"\0"
        case "an encoding beyond 32 bits":
            encoding += 1 << 32
        case "a field beyond 16 bits":
            details |= {4: 0, 4 + (1 << 16): encoding}
        case "a field twice":
            return numbers({1: 3} | sizes) + field(
                8, 12, numbers(details | {4: encoding}) + field(4, 6, varint(0)) + b"\0\0"
            )
    details = {4: encoding} | details
    return numbers({1: 3} | sizes) + other + field(8, 12, numbers(details) + b"\0\0")


LIES = [
    "none", "fields of two kinds", "a kind beyond 32 bits", "an encoding beyond 32 bits", "a field beyond 16 bits",
    "a field twice",
]  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_a_header_that_readers_could_read_in_two_ways_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lie: str
) -> None:
    shard(
        tmp_path, {"x": arrow.array([b"a" * 3000] * 4000)}, use_dictionary=False, compression="none",
        column_encoding="DELTA_BYTE_ARRAY", data_page_version="2.0", data_page_size=1 << 26,
    )  # fmt: skip
    path = tmp_path / "a.parquet"
    whole = path.read_bytes()
    reader = ThriftReader(whole[4:])
    page = reader.structure()
    assert page[8][4] == DELTA_BYTE_ARRAY
    header = twofold(page, lie)[:-1]
    spare = reader.at - len(header) - 5  # bytes, in a field that no reader knows
    header += field(15, 8, bytes([spare % 128 + 128, spare // 128])) + b"\0" * (spare + 1)
    assert len(header) == reader.at
    path.write_bytes(whole[:4] + header + whole[4 + reader.at :])
    monkeypatch.setattr("covey.data.storage.parquet.AT_ONCE", MB)
    assert parquet.read_table(path).num_rows == 4000, "Arrow reads it"
    with counted() as pool:
        data = covey.data.remote(tmp_path, "parquet")
        if lie == "none":
            assert data[7] == {"x": b"a" * 3000}
        else:
            with pytest.raises(ShardError, match="'a.parquet' has no header of a page at byte 4"):
                data[7]
            assert pool.max_memory() < MB


def columns() -> dict[str, Any]:
    return {
        "text": [f"{number % 7}" for number in range(3000)], "bytes": [bytes([number % 256]) for number in range(3000)],
        "number": np.arange(3000), "truth": [number % 3 == 0 for number in range(3000)],
        "list": [[number, number + 1] for number in range(3000)],
        "small": [[0.5] * (number % 3) for number in range(3000)],
        "texts": [["a", "b"][: number % 3] for number in range(3000)],
        "fixed": arrow.array([b"abcd"] * 3000, arrow.binary(4)),
        "struct": [{"a": number, "b": "c"} for number in range(3000)], "money": [Decimal("1.5")] * 3000,
        "large": arrow.array(["x"] * 3000, arrow.large_string()), "a.b": ["dotted"] * 3000,
    }  # fmt: skip


@pytest.mark.parametrize(
    "how",
    [
        {"compression": "none"}, {"compression": "zstd", "row_group_size": 700}, {"data_page_version": "2.0"},
        {"use_dictionary": False, "data_page_size": 1000}, {"store_schema": True},
        {"use_dictionary": False, "column_encoding": {"text": "DELTA_BYTE_ARRAY", "bytes": "DELTA_LENGTH_BYTE_ARRAY"}},
    ],
)  # fmt: skip
def test_what_others_write_is_read_as_they_read_it(tmp_path: Path, how: Any) -> None:
    shard(tmp_path, columns(), **how)
    expected = parquet.read_table(tmp_path / "a.parquet").to_pylist()
    data = covey.data.remote(tmp_path, "parquet")
    for number in (0, 1, 699, 700, 2999):
        for name, value in expected[number].items():
            found = data[number][name]
            assert np.array_equal(found, np.asarray(value)) if isinstance(value, list) else found == value
            assert not isinstance(value, list) or found.dtype == np.asarray(value).dtype or not value


def test_row_groups_of_all_shards_together_are_kept_up_to_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    covey.data.pack([{"x": "a" * 100}] * 4000, tmp_path / "set", "parquet", shard_bytes=50_000)
    monkeypatch.setattr("covey.data.storage.parquet.MOST", 50_000)
    data = covey.data.remote(tmp_path / "set")
    assert len(data.index.shards) > 4
    assert [data[number]["x"] for number in range(4000)] == ["a" * 100] * 4000
    kept = KEPT[data.source]
    assert len(kept) > 1 and sum(one.size for one in kept.values()) <= 50_000
