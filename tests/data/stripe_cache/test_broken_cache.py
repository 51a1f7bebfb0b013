"""A cache that cannot be written, locked or opened: one line says so, and reading goes on from the source."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from covey.data.stripe_cache import keeper_client
from covey.data.stripe_cache.cache_folder import CacheFolder
from covey.data.stripe_cache.keeper_client import KeeperGone, KeeperLine, socket_path
from covey.data.stripe_cache.stripe import Stripe
from covey.engines.keeper.keeper_process import SETS, KeptSets
from covey.engines.keeper.reader_lines import ReaderLines
from tests.data.stripe_cache.far_shards import FarShards, cached, read_all


@contextmanager
def no_more_files() -> Iterator[None]:
    """This process can open none."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_good_stripe_stays_when_a_process_has_too_many_open_files(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    far = FarShards()
    read_all(source := cached(far, tmp_path / "cache"))
    far.fetched.clear()
    new = cached(far, tmp_path / "cache")
    with no_more_files():
        read_all(source)
        read_all(new)
    assert far.fetched and len(list(tmp_path.glob("cache/*/sha256-*"))) == 9
    assert "Too many open files" in (told := capfd.readouterr().err) and "removed" not in told
    far.fetched.clear()
    read_all(source)
    read_all(new)
    assert not far.fetched


def test_a_cache_on_a_read_only_disk_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    far = FarShards()
    read_all(cached(far, tmp_path / "cache"))
    next(tmp_path.glob("cache/*/sha256-*")).write_bytes(b"x")
    far.fetched.clear()
    opened = os.open

    def read_only(path: Any, flags: int, *more: Any, **named: Any) -> int:
        if "/cache/" in str(path) and flags & (os.O_RDWR | os.O_WRONLY | os.O_CREAT):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        return opened(path, flags, *more, **named)

    monkeypatch.setattr(os, "open", read_only)
    read_all(source := cached(far, tmp_path / "cache"))
    assert 1 <= len(far.fetched) <= 2 and source.counts.take()["disk"] > 0
    assert capfd.readouterr().err.count("cannot be used (Read-only file system)") == 1


def test_a_plain_file_in_the_place_of_a_set_is_told_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    far = FarShards()
    read_all(source := cached(far, tmp_path / "cache"))
    folder = source.near.folder
    shutil.rmtree(folder)
    folder.write_text("")
    read_all(cached(far, tmp_path / "cache"))
    assert capfd.readouterr().err.count("cannot be used (File exists)") == 1


def stripe(number: int) -> Stripe:
    return Stripe(f"{number:064x}", "sha256", "0" * 64, 10)


def test_a_keeper_survives_what_it_cannot_open_and_makes_no_folders_for_what_is_asked(tmp_path: Path) -> None:
    cache, told = CacheFolder(tmp_path / "cache"), list[str]()
    kept = KeptSets(cache, told.append)
    for number in range(100):
        assert kept.read(stripe(number), 0, 10) is None
    assert not list(cache.folder.iterdir())
    for number in range(SETS + 30):
        (cache.folder / stripe(number).set).mkdir()
    before = len(os.listdir("/proc/self/fd"))
    for number in range(SETS + 30):
        assert kept.read(stripe(number), 0, 10) is None
    assert len(os.listdir("/proc/self/fd")) == before + SETS
    (cache.folder / stripe(0).set).chmod(0o777)
    assert kept.read(stripe(0), 0, 10) is None and kept.read(stripe(0), 0, 10) is None
    assert len(told) == 1 and "cannot be a cache" in told[0]


def test_a_keeper_without_files_hangs_up_on_new_readers_and_takes_them_later(tmp_path: Path) -> None:
    lines = ReaderLines(tmp_path)
    waits = KeeperLine(tmp_path)
    before, filled = resource.getrlimit(resource.RLIMIT_NOFILE), list[int]()
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 2, before[1]))
    try:
        with suppress(OSError):
            while True:
                filled.append(os.dup(lines._lock))
        assert lines.poll() == []
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for handle in filled:
            os.close(handle)
    waits._socket.settimeout(5)
    assert waits._socket.recv(1) == b""
    later = KeeperLine(tmp_path)
    assert lines.poll() == [] and len(lines._lines) == 1
    later.close()
    lines.close()


def test_a_reader_without_files_goes_on_without_its_keeper(tmp_path: Path) -> None:
    with no_more_files(), pytest.raises(KeeperGone):
        KeeperLine(tmp_path)


def test_a_silent_keeper_is_waited_for_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(keeper_client, "PATIENCE", 0.1)
    far, source = FarShards(), cached(FarShards(), tmp_path / "cache")
    with socket.socket(socket.AF_UNIX) as frozen, socket_path(source.cache.folder) as path:
        frozen.bind(path)
        frozen.listen(64)
        frozen.setblocking(False)
        read_all(source)
        frozen.accept()[0].close()
        with pytest.raises(BlockingIOError):
            frozen.accept()
    assert source.counts.take()["backend"] == far.bytes
    told = capfd.readouterr().err
    assert told.count("has not answered in 0.1 s: stripes are read from their source") == told.count("\n") == 1
