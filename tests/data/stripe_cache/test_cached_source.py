"""Each stripe is read from its source once; what is in the cache is believed only if it has the right bytes."""

from __future__ import annotations

import os
import pickle
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from covey.data.stripe_cache import cache_folder, cached_set
from covey.data.stripe_cache.cache_folder import CacheFolder
from covey.data.stripe_cache.cached_set import CachedSet
from covey.data.stripe_cache.cached_source import CachedSource
from covey.data.stripe_cache.read_counts import notes
from covey.data.stripe_cache.stripe import Stripe
from covey.errors import PlanError, ShardError, WireError
from tests.data.stripe_cache.far_shards import STRIPE, FarShards, assert_children, cached, read_all


def stripes(folder: Path) -> list[Path]:
    return sorted(folder.glob("*/sha256-*"))


def test_the_second_epoch_and_a_second_job_read_nothing_from_the_source(tmp_path: Path) -> None:
    far = FarShards()
    first = cached(far, tmp_path / "cache")
    notes()
    read_all(first)
    assert first.counts.take()["backend"] == far.bytes
    read_all(first)
    assert first.counts.take() == {"backend": 0, "peers": 0, "disk": far.bytes}
    second = pickle.loads(pickle.dumps(cached(far, tmp_path / "cache")))  # noqa: S301  # as a DataLoader does
    read_all(second)
    assert second.counts.take()["backend"] == 0
    assert sum(len(data) for data in map(Path.read_bytes, stripes(tmp_path / "cache"))) == far.bytes


def test_what_was_read_is_noted_once(tmp_path: Path) -> None:
    far, before = FarShards(), notes()
    read_all(source := cached(far, tmp_path / "cache"))
    assert_children(lambda: read_all(source))  # as a DataLoader's process
    found = notes()
    assert found["backend bytes"] == far.bytes and found["cached bytes"] >= far.bytes and before is not found
    assert notes() == {}, "a run without far data says nothing of them, though a source is still there"


def wrong_bytes(path: Path) -> None:
    path.write_bytes(b"x" * path.stat().st_size)


def truncated(path: Path) -> None:
    os.truncate(path, 100)


def link(path: Path) -> None:
    path.rename(path.parent.parent / "elsewhere")
    path.symlink_to(path.parent.parent / "elsewhere")


def hard_link(path: Path) -> None:
    os.link(path, path.parent.parent / "elsewhere")


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def of_another_user(path: Path) -> None:
    if os.geteuid():
        pytest.skip("only root can give files away")
    os.chown(path, 12345, -1)


@pytest.mark.parametrize("spoil", [wrong_bytes, truncated, link, hard_link, pipe, folder, of_another_user])
def test_a_file_that_is_no_stripe_is_removed_and_fetched_again(
    tmp_path: Path, spoil: Callable[[Path], None], capfd: pytest.CaptureFixture[str]
) -> None:
    far = FarShards()
    source = cached(far, tmp_path / "cache")
    read_all(source)
    spoil(stripes(tmp_path / "cache")[0])
    far.fetched.clear()
    read_all(source)
    assert len(far.fetched) == 1
    assert "removed, and fetched again" in capfd.readouterr().err
    read_all(source)
    assert len(far.fetched) == 1


def test_wrong_bytes_of_the_source_are_not_cached(tmp_path: Path) -> None:
    far = FarShards(shards=1)
    source = cached(far, tmp_path / "cache")
    right, far.shards["0.mds"] = far.shards["0.mds"], bytes(10_000)
    with pytest.raises(ShardError, match="0.mds"):
        source.read("0.mds", 0, 10)
    assert stripes(tmp_path / "cache") == []
    far.shards["0.mds"] = right
    read_all(source)


def test_processes_that_fill_it_at_once_fetch_each_stripe_once(tmp_path: Path) -> None:
    place, far = tmp_path / "cache", FarShards()
    far.log = tmp_path / "log"
    assert_children(*[lambda: read_all(cached(far, place))] * 3)
    fetched = far.log.read_text().splitlines()
    assert len(fetched) == len(set(fetched)) == 9
    assert not list(place.glob("*/*.part"))


def test_who_comes_while_a_stripe_is_fetched_waits_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    far = FarShards(shards=1, size=STRIPE)
    began, waits, inner, lock = threading.Event(), threading.Event(), far.read, cached_set._lock

    def slowly(name: str, start: int, stop: int) -> bytes:
        began.set()
        assert waits.wait(100)
        return inner(name, start, stop)

    def looked(handle: int) -> bool:
        got = lock(handle)
        if not got:
            waits.set()
        return got

    monkeypatch.setattr(far, "read", slowly)
    monkeypatch.setattr(cached_set, "_lock", looked)
    sources = [cached(far, tmp_path / "cache") for _ in range(2)]
    readers = [threading.Thread(target=read_all, args=[one]) for one in sources]
    readers[0].start()
    assert began.wait(100)
    readers[1].start()
    for reader in readers:
        reader.join(100)
    assert len(far.fetched) == 1


def test_who_was_killed_while_fetching_leaves_a_part_that_the_next_one_replaces(tmp_path: Path) -> None:
    far = FarShards(shards=1)
    source = cached(far, tmp_path / "cache")
    name = f"sha256-{source.entries['0.mds'].hashes[0]}.part"
    (source.near.folder / name).write_bytes(b"half")
    read_all(source)
    assert not (source.near.folder / name).exists() and len(stripes(tmp_path / "cache")) == 3


def test_whole_sets_go_the_least_recently_used_first_and_never_one_in_use(tmp_path: Path) -> None:
    place, sets = tmp_path / "cache", [FarShards(seed=seed) for seed in range(4)]
    limit = 3 * sets[0].bytes + 100
    sources = [cached(far, place, limit) for far in sets]
    for at, source in enumerate(sources[:3]):  # the first one is the oldest, and stays in use
        read_all(source)
        os.utime(source.near.folder / "used", (at, at))
    for source in sources[1:3]:
        source.near.close()
    read_all(sources[3])
    assert sources[3].counts.take()["backend"] == sets[3].bytes
    left = {one.name: one.bytes for one in CacheFolder(place).sets()}
    assert left == {sources[kept]._key: sets[kept].bytes for kept in (0, 2, 3)}
    read_all(sources[0])
    assert len(sets[0].fetched) == 9


def test_without_room_reading_goes_on_and_one_line_says_so(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    far = FarShards()
    source = cached(far, tmp_path / "cache", limit=2 * STRIPE)
    read_all(source)
    read_all(source)
    assert len(stripes(tmp_path / "cache")) == 2
    assert capfd.readouterr().err.count("no room") == 1


def test_a_full_disk_is_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache_folder.os, "posix_fallocate", full)
    far = FarShards()
    read_all(cached(far, tmp_path / "cache"))
    assert capfd.readouterr().err.count("no room") == 1 and stripes(tmp_path / "cache") == []


def test_a_disk_that_cannot_be_written_is_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    far = FarShards()
    source = cached(far, tmp_path / "cache")
    assert source.near

    def refuse(path: Path) -> int:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(cached_set, "_opened", refuse)
    read_all(source)
    assert capfd.readouterr().err.count("Read-only file system") == 1


def test_a_slow_process_is_not_waited_for_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cached_set, "PATIENCE", 0.0)
    far = FarShards(shards=1, size=STRIPE)
    source, other = cached(far, tmp_path / "cache"), cached(far, tmp_path / "cache")
    stripe = Stripe(source.near.folder.name, "sha256", source.entries["0.mds"].hashes[0], STRIPE)
    with other.near._filling(stripe):
        read_all(source)
    assert len(far.fetched) == 1 and stripes(tmp_path / "cache") == []


def test_a_cache_into_which_others_can_write_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    with pytest.raises(PlanError, match="nobody else can write"):
        CacheFolder(tmp_path / "cache")
    (tmp_path / "file").touch()
    with pytest.raises(PlanError, match="cannot be a cache"):
        CacheFolder(tmp_path / "file")


def test_a_link_in_the_place_of_a_set_is_not_followed(tmp_path: Path) -> None:
    far, away = FarShards(), tmp_path / "away"
    away.mkdir()
    source = cached(far, tmp_path / "cache")
    (tmp_path / "cache" / source._key).symlink_to(away)
    read_all(source)
    assert not list(away.iterdir()) and len(stripes(tmp_path / "cache")) == 9


def test_a_set_that_is_removed_while_it_is_opened_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    far, inner, calls = FarShards(), cached_set.make_private, []

    def removed(folder: Path) -> None:
        inner(folder)
        calls.append(folder)
        if len(calls) == 1:
            shutil.rmtree(folder)

    monkeypatch.setattr(cached_set, "make_private", removed)
    read_all(cached(far, tmp_path / "cache"))
    assert len(calls) == 2


@pytest.mark.parametrize("change", [{"digest": "../x"}, {"set": "../x"}, {"size": 1 << 40}, {"algorithm": "crc"}])
def test_a_stripe_that_names_another_file_is_refused(change: dict[str, object]) -> None:
    right = Stripe("0" * 64, "sha256", "0" * 64, 10)
    right.check("a peer")
    with pytest.raises(WireError, match="a peer asked for a stripe that cannot be"):
        right._replace(**change).check("a peer")  # type: ignore[arg-type]


def test_stripes_without_hashes_are_kept_in_memory_only(tmp_path: Path) -> None:
    far = FarShards(shards=1)
    bare = [type(one)(name=one.name, size=one.size, stripe=one.stripe) for one in far.entries()]
    source = CachedSource(far, bare, folder=tmp_path / "cache")
    read_all(source)
    assert stripes(tmp_path / "cache") == []


def test_a_set_says_where_it_comes_from_and_whether_it_is_used(tmp_path: Path) -> None:
    far, cache = FarShards(), CacheFolder(tmp_path / "cache")
    source = cached(far, tmp_path / "cache")
    read_all(source)
    (one,) = cache.sets()
    assert (one.place, one.stripes, one.bytes, one.in_use) == ("far://shards", 9, far.bytes, True)
    assert not cache.remove(one.name)
    assert isinstance(source.near, CachedSet)
    source.near.close()
    assert not cache.sets()[0].in_use and cache.remove(one.name) and cache.sets() == []
