"""Keepers on four hosts of the lab: together they read the set from its source once, over links that are shaped."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from covey.data.stripe_cache.cache_folder import CacheFolder
from covey.engines.interrupt import Interrupt
from covey.engines.keeper.keeper_pool import KeeperPool, new_pool
from covey.engines.keeper.keeper_process import keep
from covey.engines.lab import iproute
from covey.engines.lab.fork_server import enter
from tests.clusters.lab_parts import Net, network
from tests.data.stripe_cache.far_shards import FarShards, assert_children, cached, forked, read_all
from tests.engines.test_real_keepers import fetched, listens

NEEDED = iproute.missing()
pytestmark = [pytest.mark.full, pytest.mark.xdist_group("lab"), pytest.mark.skipif(bool(NEEDED), reason=NEEDED)]
HOSTS, STRIPES = 4, 24


def on(net: Net, host: int, work: Callable[[], None]) -> Callable[[], None]:
    """The work, on a host of the lab."""

    def there() -> None:
        enter(net.lab.name.host(f"h{host}"))
        work()

    return there


def start(net: Net, pool: KeeperPool, host: int, folder: Path) -> int:
    keeper = forked(on(net, host, lambda: keep(pool, pool.members[host].address, folder, None, Interrupt(), print)))
    until = time.monotonic() + 60
    while not listens(folder):
        assert time.monotonic() < until
        time.sleep(0.01)
    return keeper


def end(keeper: int) -> None:
    os.kill(keeper, signal.SIGKILL)
    os.waitpid(keeper, 0)


def test_four_hosts_read_the_set_once_and_refetch_what_a_lost_one_had(tmp_path: Path) -> None:
    far, folders = FarShards(shards=8), [tmp_path / f"host{host}" for host in range(HOSTS)]
    far.log = tmp_path / "log"
    with network(HOSTS, "100mbit") as net:
        pool = new_pool(tmp_path / "pool.json", [f"{net.address(host)}:7171" for host in range(HOSTS)])
        keepers = {host: start(net, pool, host, folders[host]) for host in range(HOSTS)}

        def epoch(*hosts: int) -> None:
            assert_children(
                *[on(net, host, lambda place=folders[host]: read_all(cached(far, place))) for host in hosts]
            )  # type: ignore[misc]

        try:
            epoch(0, 1, 2, 3)
            once = fetched(far)
            assert once.total() == len(once) == STRIPES
            assert sum(map(size_of, once)) == far.bytes  # 1.0x of the set
            epoch(0, 1, 2, 3)
            assert not fetched(far)
            had = sum(one.stripes for one in CacheFolder(folders[2]).sets())
            net.lab.cut("h2")
            end(keepers.pop(2))
            shutil.rmtree(folders[2])
            epoch(0, 1, 3)
            again = fetched(far)
            assert again.total() == len(again) == had > 0
            epoch(0, 1, 3)
            assert not fetched(far)
        finally:
            for keeper in keepers.values():
                end(keeper)


def size_of(line: str) -> int:
    """The bytes of a fetch that was written down."""
    return int(line.split()[2])
