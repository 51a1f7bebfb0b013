"""Keepers as processes on one machine: what they read from the source, who is let in, and a lost host."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from covey.data.stripe_cache import keeper_client
from covey.data.stripe_cache.cache_folder import CacheFolder
from covey.data.stripe_cache.keeper_client import KeeperGone, KeeperLine, socket_path
from covey.data.stripe_cache.stripe import Stripe, owners
from covey.engines.interrupt import Interrupt
from covey.engines.keeper.keeper_pool import KeeperPool, new_pool, read_pool
from covey.engines.keeper.keeper_process import KeptSets, keep
from covey.engines.service import dialled_link
from covey.errors import PlanError
from tests.data.stripe_cache.far_shards import FarShards, assert_children, cached, forked, read_all


def free_addresses(number: int) -> list[str]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    found = [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]
    for one in sockets:
        one.close()
    return found


def addresses_that_share(far: FarShards, number: int) -> list[str]:
    """Free ones of which each has stripes to keep: who keeps what follows from the addresses."""
    stripes = [Stripe("", "sha256", digest, 0) for entry in far.entries() for digest in entry.hashes]
    found = free_addresses(number)
    while {owners(stripe, found)[0] for stripe in stripes} != set(found):
        found = free_addresses(number)
    return found


def start(pool: KeeperPool, place: int, folder: Path, first: Callable[[], None] = lambda: None) -> int:
    def run() -> None:
        first()
        keep(pool, pool.members[place].address, folder, None, Interrupt(), print)

    child = forked(run)
    until = time.monotonic() + 100
    while not listens(folder):
        assert time.monotonic() < until
        time.sleep(0.01)
    return child


def listens(folder: Path) -> bool:
    try:
        KeeperLine(folder).close()
    except (KeeperGone, FileNotFoundError):
        return False
    return True


@contextmanager
def running(pool: KeeperPool, folders: list[Path], first: Callable[[], None] = lambda: None) -> Iterator[list[int]]:
    keepers = [start(pool, place, folder, first) for place, folder in enumerate(folders)]
    try:
        yield keepers
    finally:
        for keeper in keepers:
            os.kill(keeper, signal.SIGKILL)
            os.waitpid(keeper, 0)


def fetched(far: FarShards) -> Counter[str]:
    """What was read from the source since this was last asked."""
    assert far.log is not None
    lines = far.log.read_text().splitlines() if far.log.exists() else []
    far.log.unlink(missing_ok=True)
    return Counter(lines)


def test_four_hosts_read_the_set_once_and_refetch_what_a_lost_one_had(tmp_path: Path) -> None:
    far, folders = FarShards(shards=8), [tmp_path / f"host{place}" for place in range(4)]
    pool = new_pool(tmp_path / "pool.json", addresses_that_share(far, 4))
    assert read_pool(tmp_path / "pool.json") == pool
    far.log = tmp_path / "log"

    def epoch(*hosts: int) -> None:
        assert_children(*[lambda place=place: read_all(cached(far, folders[place])) for place in hosts])  # type: ignore[misc]

    with running(pool, folders) as keepers:
        epoch(0, 1, 2, 3)
        once = fetched(far)
        assert len(once) == 24 and set(once.values()) == {1}
        on_disk = [sum(one.stripes for one in CacheFolder(folder).sets()) for folder in folders]
        assert sum(on_disk) == 24 and min(on_disk) > 0
        epoch(0, 1, 2, 3)
        assert not fetched(far)
        os.kill(keepers[2], signal.SIGKILL)
        os.waitpid(keepers[2], 0)
        shutil.rmtree(folders[2])
        epoch(0, 1, 3)
        again = fetched(far)
        assert again.total() == len(again) == on_disk[2]
        keepers[2] = start(pool, 2, folders[2])
        epoch(0, 1, 2, 3)
        assert fetched(far).total() <= on_disk[2]  # it has its stripes again, if it was asked for them


def test_a_reader_goes_on_without_its_keeper(tmp_path: Path) -> None:
    pool, far, folder = new_pool(tmp_path / "pool.json", free_addresses(1)), FarShards(), tmp_path / "host"
    ended = Interrupt()
    ended()
    with running(pool, [folder]) as keepers:
        source = cached(far, folder)
        source.read("0.mds", 0, 10)
        os.kill(keepers[0], signal.SIGKILL)
        os.waitpid(keepers[0], 0)
        read_all(source)
        assert len(far.fetched) == 9
        keepers[0] = start(pool, 0, folder)
        with pytest.raises(PlanError, match="has a keeper already"):
            keep(pool, pool.members[0].address, folder, None, ended, print)


@pytest.mark.parametrize("wrong", [bytes, lambda size: bytes(size + 1), lambda size: b""])
def test_wrong_bytes_of_a_keeper_are_named_and_read_from_the_source(
    tmp_path: Path, wrong: Callable[[int], bytes], capfd: pytest.CaptureFixture[str]
) -> None:
    pool, far, folder = new_pool(tmp_path / "pool.json", free_addresses(1)), FarShards(), tmp_path / "host"

    def read(self: KeptSets, stripe: Stripe, first: int, last: int) -> bytes:
        return wrong(last - first)

    with running(pool, [folder], lambda: setattr(KeptSets, "read", read)):
        source = cached(far, folder)
        read_all(source)
    assert source.counts.take()["backend"] == far.bytes
    told = capfd.readouterr().err
    assert told.count("gave wrong bytes 0 to 4096 of shard '0.mds' of far://shards") == told.count("gave wrong") == 1


def test_what_is_no_reader_is_hung_up_on_and_others_are_served(tmp_path: Path) -> None:
    pool, far, folder = new_pool(tmp_path / "pool.json", free_addresses(1)), FarShards(), tmp_path / "host"
    with running(pool, [folder]), socket.socket(socket.AF_UNIX) as line, socket_path(folder) as path:
        line.settimeout(100)
        line.connect(path)
        line.sendall(b"\xff" * 100)
        assert line.recv(1) == b""
        waits = KeeperLine(folder)  # says nothing
        read_all(source := cached(far, folder))
        assert source.counts.take()["backend"] == far.bytes
        waits.close()


def test_a_reader_that_dies_while_it_fetches_is_followed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool, far, folder = new_pool(tmp_path / "pool.json", free_addresses(1)), FarShards(), tmp_path / "host"
    monkeypatch.setattr(keeper_client, "PATIENCE", 100.0)
    source = cached(far, folder)
    entry = source.entries["0.mds"]
    stripe = source._stripe(entry, 0)
    assert stripe
    with running(pool, [folder]):
        assert_children(lambda: source._keeper.read(stripe, 0, 10, lambda: os._exit(0)))  # type: ignore[arg-type, return-value]
        found = source._keeper.read(stripe, 0, 10, lambda: source.stripe(entry, 0))
        assert found == (far.shards["0.mds"][:10], True)


def test_a_pool_that_others_can_read_is_refused(tmp_path: Path) -> None:
    new_pool(tmp_path / "pool.json", ["a:1", "b:2"])
    assert (tmp_path / "pool.json").stat().st_mode & 0o777 == 0o600
    (tmp_path / "pool.json").chmod(0o644)
    with pytest.raises(PlanError, match="others can read it"):
        read_pool(tmp_path / "pool.json")
    with pytest.raises(PlanError, match="there is no file"):
        read_pool(tmp_path / "none.json")
    with pytest.raises(PlanError, match="c:3 is not in the pool, which has a:1, b:2"):
        new_pool(tmp_path / "pool.json", ["a:1", "b:2"]).place("c:3")
    with pytest.raises(PlanError, match="each once"):
        new_pool(tmp_path / "pool.json", ["a:1", "a:1"])


def test_a_peer_that_is_stopped_is_left_out_and_both_say_so(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its stripes are read from the source by the others; when it goes on, it is asked again."""
    monkeypatch.setattr(dialled_link, "BEAT", 100)
    monkeypatch.setattr(dialled_link, "FROZEN", 500)
    far, folders = FarShards(), [tmp_path / f"host{place}" for place in range(2)]
    pool = new_pool(tmp_path / "pool.json", addresses_that_share(far, 2))
    with running(pool, folders) as keepers:
        read_all(source := cached(far, folders[0]))
        assert len(far.fetched) == 9
        os.kill(keepers[1], signal.SIGSTOP)
        read_all(source)
        theirs = len(far.fetched) - 9
        assert 0 < theirs < 9
        os.kill(keepers[1], signal.SIGCONT)
        told = ""
        while "is back" not in told:
            time.sleep(0.05)
            told += capfd.readouterr().out
    where = pool.members[1].address
    assert f"the keeper at {where} does not answer: its stripes are read from their source" in told
