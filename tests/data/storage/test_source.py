"""Shards as named bytes: a folder, its index, and what is refused."""

from __future__ import annotations

import os
import time
from copy import copy
from pathlib import Path

import msgspec
import pytest

import covey
from covey.data.storage.index import INDEX, ShardEntry, ShardIndex, hashed, read_index
from covey.data.storage.source import FolderSource, ShardSource, checked_name
from covey.data.storage.stripes import CheckedSource
from covey.errors import PlanError, ShardError, WireError

BYTES = bytes(range(256)) * 80  # five stripes of 4 KiB


class Far(ShardSource):
    """A source that is no folder, and counts what it is asked for."""

    def __init__(self, shards: dict[str, bytes]) -> None:
        super().__init__("far://")
        self.shards, self.asked = shards, 0

    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self.shards))

    def size(self, name: str) -> int:
        return len(self.shards[name])

    def read(self, name: str, start: int, stop: int) -> bytes:
        self.asked += stop - start
        return self.shards[name][start:stop]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "part").mkdir()
    (tmp_path / "a.bin").write_bytes(BYTES)
    (tmp_path / "part" / "b.bin").write_bytes(BYTES[::-1])
    (tmp_path / ".hidden").write_bytes(b"x")
    return tmp_path


def entries(source: ShardSource) -> tuple[ShardEntry, ...]:
    return tuple(hashed(source, name, stripe=4096) for name in source.names())


def test_a_folder_gives_names_sizes_and_bytes(folder: Path) -> None:
    source = FolderSource(folder)
    assert source.names() == ("a.bin", "part/b.bin")
    assert source.size("part/b.bin") == len(BYTES)
    assert source.read("a.bin", 5, 300) == BYTES[5:300]
    assert copy(source).read("a.bin", 0, 3) == BYTES[:3]


def test_a_missing_folder_shard_or_byte_is_named(folder: Path) -> None:
    with pytest.raises(PlanError, match="there is no folder"):
        FolderSource(folder / "none")
    source = FolderSource(folder)
    with pytest.raises(ShardError, match="shard 'c.bin' cannot be read: No such file"):
        source.read("c.bin", 0, 1)
    with pytest.raises(ShardError, match="ends after 20480 bytes; bytes 20000 to 20500 were asked for"):
        source.read("a.bin", 20000, 20500)


@pytest.mark.parametrize("name", ["", "..", "../a", "a/../../b", "/etc/passwd", "a//b", "a\\b", "a\0b", "x" * 2000])
def test_names_that_climb_are_refused(name: str) -> None:
    with pytest.raises(ShardError, match="must not be called"):
        checked_name(name)


def test_links_that_leave_the_folder_and_pipes_are_refused(folder: Path) -> None:
    (folder / "in").symlink_to("a.bin")
    (folder / "out").symlink_to("/etc/passwd")
    os.mkfifo(folder / "pipe")
    source = FolderSource(folder)
    assert source.read("in", 0, 4) == BYTES[:4]
    with pytest.raises(ShardError, match="leads out of the folder"):
        source.size("out")
    with pytest.raises(ShardError, match="is not a plain file"):
        source.size("pipe")


def test_a_file_that_is_written_to_is_refused_and_a_replaced_one_stays_what_it_was(folder: Path) -> None:
    source = FolderSource(folder)
    assert source.read("a.bin", 0, 2) == BYTES[:2]
    (folder / "new").write_bytes(b"new" * 9000)
    os.replace(folder / "new", folder / "a.bin")
    assert source.read("a.bin", 0, 2) == BYTES[:2]
    assert source.size("part/b.bin") == len(BYTES)
    (folder / "part/b.bin").write_bytes(BYTES + b"more")
    with pytest.raises(ShardError, match="shard 'part/b.bin' changed while it was read"):
        source.read("part/b.bin", 0, 2)


@pytest.mark.parametrize("hashes", [True, False])
def test_a_file_whose_time_was_put_back_is_checked_again(folder: Path, hashes: bool) -> None:
    found = [msgspec.structs.replace(entry, hashes=()) for entry in entries(FolderSource(folder))]
    source = CheckedSource(FolderSource(folder), entries(FolderSource(folder)) if hashes else found)
    assert source.read("a.bin", 0, 2) + source.read("part/b.bin", 0, 2) == BYTES[:2] + BYTES[::-1][:2]
    (folder / "new").write_bytes(b"new")
    os.replace(folder / "new", folder / "a.bin")
    assert source.read("a.bin", 0, 2) == BYTES[:2], "replaced: it stays what it was"
    file, known = folder / "part/b.bin", (folder / "part/b.bin").stat()
    time.sleep(0.02)  # a tick of the clock that stamps files
    os.utime(file, ns=(known.st_atime_ns, known.st_mtime_ns))
    if hashes:
        assert source.read("part/b.bin", 0, 2) == BYTES[::-1][:2], "touched, with the same bytes"
    with file.open("r+b") as opened:
        opened.write(b"other")
    os.utime(file, ns=(known.st_atime_ns, known.st_mtime_ns))
    with pytest.raises(ShardError, match="'part/b.bin' " + ("is damaged, or changed" if hashes else "was changed")):
        source.read("part/b.bin", 0, 2)


def test_a_file_that_is_touched_all_the_time_is_named_at_last(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter(range(1000))
    monkeypatch.setattr(FolderSource, "touched", lambda source, name: (next(moments), 1))
    source = CheckedSource(FolderSource(folder), entries(FolderSource(folder)))
    with pytest.raises(ShardError, match="'a.bin' is changed all the time"):
        source.read("a.bin", 0, 2)


def test_the_index_is_read_back(folder: Path) -> None:
    source = FolderSource(folder)
    index = ShardIndex(format="tar", shards=entries(source))
    (folder / INDEX).write_bytes(msgspec.json.encode(index))
    assert read_index(source) == index
    assert index.shards[0].stripes() == len(index.shards[0].hashes) == 5
    assert list(index.shards[0].parts(4000, 8200)) == [(0, 4000, 4096), (1, 0, 4096), (2, 0, 8)]
    assert index.key() != ShardIndex(format="tar", shards=index.shards[:1]).key()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"name": "../a.bin"}, "must not be called"),
        ({"size": 0}, "no valid entry"),
        ({"stripe": 1}, "no valid entry"),
        ({"size": 1 << 40}, "one for each of 268435456 stripes"),
        ({"hashes": ("00",)}, "has 1 hashes"),
        ({"algorithm": "shake_128"}, r"\(shake_128\)"),
    ],
)
def test_an_index_that_lies_is_refused(folder: Path, change: dict[str, object], said: str) -> None:
    source = FolderSource(folder)
    entry = msgspec.structs.replace(entries(source)[0], **change)
    (folder / INDEX).write_bytes(msgspec.json.encode(ShardIndex(format="tar", shards=(entry,))))
    with pytest.raises(ShardError, match=said):
        read_index(source)


def test_an_index_that_is_none_is_refused(folder: Path) -> None:
    (folder / INDEX).write_bytes(b"[" * 5000)
    with pytest.raises(WireError, match="invalid index of shards"):
        read_index(FolderSource(folder))
    (folder / INDEX).write_bytes(msgspec.json.encode(ShardIndex(format="tar", shards=())))
    with pytest.raises(ShardError, match="at least one shard"):
        read_index(FolderSource(folder))


def test_checked_shards_of_a_folder(folder: Path) -> None:
    source = FolderSource(folder)
    checked = CheckedSource(source, entries(source))
    assert checked.read("a.bin", 4000, 9000) == BYTES[4000:9000]
    assert copy(checked).whole("part/b.bin") == BYTES[::-1]
    damaged = bytearray(BYTES)
    damaged[5000] ^= 1
    (folder / "a.bin").write_bytes(damaged)
    again = CheckedSource(FolderSource(folder), checked.entries.values())
    assert again.read("a.bin", 0, 4096) == BYTES[:4096], "only the second stripe is damaged"
    with pytest.raises(ShardError, match="shard 'a.bin' is damaged, or changed: its bytes 4096 to 8192"):
        again.read("a.bin", 0, 4097)
    (folder / "a.bin").write_bytes(BYTES[:-1])
    with pytest.raises(ShardError, match="has 20479 bytes, and the index says 20480: truncated"):
        CheckedSource(FolderSource(folder), checked.entries.values()).read("a.bin", 0, 1)


def test_checked_shards_from_afar_are_kept_in_memory_up_to_a_limit() -> None:
    far = Far({"a": BYTES, "b": BYTES[::-1]})
    checked = CheckedSource(far, entries(far), memory=8192)
    far.asked = 0
    assert checked.read("a", 10, 20) == BYTES[10:20] and checked.read("a", 4090, 4100) == BYTES[4090:4100]
    assert far.asked == 8192, "whole stripes, each once"
    assert checked.read("b", 0, 1) == BYTES[-1:] and checked.read("a", 4096, 4097) == BYTES[:1]
    assert far.asked == 3 * 4096
    checked.read("a", 0, 1)
    assert far.asked == 4 * 4096, "the least recently used stripe made room"
    checked.read("b", 4096, 4097)
    checked.read("b", 8192, 8193)
    checked.read("b", 12288, 12289)
    far.asked = 0
    checked.read("b", 8192, 12289)
    assert far.asked == 0, "two stripes still fit"
    checked.read("a", 0, 1)
    assert far.asked == 4096, "and no more than two"
    checked.read("a", 4096, 8192)
    checked.read("a", 8192, 8193)
    far.shards["b"] = BYTES
    with pytest.raises(ShardError, match="shard 'b' is damaged, or changed"):
        checked.read("b", 8192, 8193)
    with pytest.raises(ShardError, match="has 20480 bytes; bytes 5 to 20481"):
        checked.read("a", 5, 20481)


def test_an_index_that_is_too_large_is_not_read(folder: Path) -> None:
    with (folder / INDEX).open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ShardError, match="shard 'shards.json' has 1099511627776 bytes; the limit is"):
        read_index(FolderSource(folder))


def test_more_samples_than_can_be_numbered_are_refused(folder: Path) -> None:
    two = [msgspec.structs.replace(entry, samples=(1 << 63) - 1) for entry in entries(FolderSource(folder))]
    (folder / INDEX).write_bytes(msgspec.json.encode(ShardIndex(format="tar", shards=tuple(two))))
    with pytest.raises(ShardError, match="18446744073709551614 samples are more than there can be"):
        covey.data.remote(folder)
