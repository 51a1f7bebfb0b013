"""A job that is stopped (SIGSTOP) while it holds a lock of the cache: others wait for a while, say so, and go on."""

from __future__ import annotations

import fcntl
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from covey.data.stripe_cache import cache_folder, cached_set
from covey.data.stripe_cache.cached_source import CachedSource
from covey.data.stripe_cache.stripe import Stripe
from covey.errors import PlanError
from tests.data.stripe_cache.far_shards import STRIPE, FarShards, cached, forked, read_all


@contextmanager
def stopped(work: Callable[[Callable[[], None]], None]) -> Iterator[int]:
    """A process that does this until it stops itself, where it calls what it is given."""
    child = forked(lambda: work(lambda: os.kill(os.getpid(), signal.SIGSTOP)))
    try:
        assert os.WIFSTOPPED(os.waitpid(child, os.WUNTRACED)[1])
        yield child
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def holding_room(folder: Path, stop: Callable[[], None]) -> None:
    """While it changes how much room is taken."""
    with cache_folder.CacheFolder(folder)._taken():
        stop()


def fetching(folder: Path, stop: Callable[[], None]) -> None:
    """While it fetches the first stripe."""
    far = FarShards()
    source = cached(far, folder)

    def fetch() -> bytes:
        stop()
        return b""

    source.near.fill(first(source), fetch)


def removing(folder: Path, stop: Callable[[], None]) -> None:
    """While it removes the set."""
    near = cached(FarShards(), folder).near
    near.close()
    with open(near.folder / cache_folder.USED) as used:
        fcntl.flock(used, fcntl.LOCK_EX)
        stop()


def first(source: CachedSource) -> Stripe:
    return Stripe(source.near.folder.name, "sha256", source.entries["0.mds"].hashes[0], STRIPE)


@pytest.mark.parametrize(
    ("work", "said"),
    [
        (holding_room, "another process, which may be stopped, has had its lock for 0.2 s): stripes are read from"),
        (fetching, "in 0.2 s: such stripes are read from their source"),
        (removing, "another process, which may be stopped, has had its lock for 0.2 s): what is not there is read"),
    ],
)
def test_a_stopped_job_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str],
    work: Callable[[Path, Callable[[], None]], None], said: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(cache_folder, "LOCKED", 0.2)
    monkeypatch.setattr(cached_set, "PATIENCE", 0.2)
    far = FarShards()
    with stopped(lambda stop: work(tmp_path / "cache", stop)):
        begin = time.monotonic()
        read_all(source := cached(far, tmp_path / "cache"))
        assert time.monotonic() - begin < 10, "it has been waited for again and again"
    assert source.counts.take()["backend"] >= far.bytes
    told = capfd.readouterr().err
    assert told.count(said) == told.count("\n") == 1


def test_it_is_waited_for_at_length_only_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stopped one was about to fetch all stripes."""
    monkeypatch.setattr(cached_set, "PATIENCE", 2.0)
    monkeypatch.setattr(cached_set, "BRIEFLY", 0.0)
    far = FarShards()

    def fetch_all(stop: Callable[[], None]) -> None:
        near = cached(far, tmp_path / "cache").near
        for entry in far.entries():
            for number, digest in enumerate(entry.hashes):
                start, end = entry.bounds(number)
                stripe = Stripe(near.folder.name, "sha256", digest, end - start)
                near._locked(near.folder / f"{stripe.name}{cached_set.PART}")
        stop()

    with stopped(fetch_all):
        begin = time.monotonic()
        read_all(cached(far, tmp_path / "cache"))
        assert 2 <= time.monotonic() - begin < 4


def test_who_wants_to_remove_a_set_meanwhile_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_folder, "LOCKED", 0.1)
    read_all(source := cached(FarShards(), tmp_path / "cache"))
    with (
        stopped(lambda stop: holding_room(tmp_path / "cache", stop)),
        pytest.raises(PlanError, match="cannot be changed: another process, which may be stopped"),
    ):
        source.cache.remove(source.near.folder.name)
