"""Where roles live on a cluster, by which address hosts meet, and which hosts are refused before training begins."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

import covey
from covey import catalog
from covey.engines import handover, torchrun_agent
from covey.engines.cluster import shipping, this_host
from covey.engines.cluster.placement import place, sites_of
from covey.engines.cluster.rank_roles import RankRoles
from covey.engines.cluster.site_messages import SiteConfig
from covey.engines.launch_environment import LaunchEnvironment
from covey.engines.process.forking import fork_server_client as client
from covey.engines.torchrun import StoreChannel
from covey.errors import PeerLost, PlanError
from covey.message import Address
from covey.observe.result import Result
from covey.run.clusters import at
from covey.run.options import options
from covey.run.request import request
from tests.clusters.shared import parent
from tests.clusters.spawned import SpawnedPlaces
from tests.real.harness import SLOW, Room, Watch, differing, trained

HOSTS = ["a", "a", "b", "c"]  # of four slots


@pytest.mark.parametrize(
    ("wish", "found"),
    [
        ("", "worker 0: 0, worker 1: 1, worker 2: 2, worker 3: 3, server 0: 0, server 1: 1"),
        ("workers:a", "worker 0: 0, worker 1: 0, worker 2: 1, worker 3: 1, server 0: 2, server 1: 3"),
        ("servers:node1", "worker 0: 0, worker 1: 1, worker 2: 2, worker 3: 3, server 0: 2, server 1: 2"),
        ("servers:node0,workers:rest", "worker 0: 2, worker 1: 2, worker 2: 3, worker 3: 3, server 0: 0, server 1: 1"),
        ("workers:rest,servers:node0", "worker 0: 2, worker 1: 2, worker 2: 3, worker 3: 3, server 0: 0, server 1: 1"),
        ("servers:b+c", "worker 0: 0, worker 1: 1, worker 2: 2, worker 3: 3, server 0: 2, server 1: 3"),
        ("servers:site3", "worker 0: 0, worker 1: 1, worker 2: 2, worker 3: 3, server 0: 3, server 1: 3"),
    ],
)
def test_roles_live_where_they_are_told_to(wish: str, found: str) -> None:
    roles = catalog.resolve("bsp", 4).roles(4, 2)
    homes = place(roles, sites_of(HOSTS), wish)
    assert sorted(f"{who}: {site.number}" for who, site in homes.items()) == sorted(found.split(", "))


def test_fewer_workers_than_sites_have_the_first_ones() -> None:
    homes = place(catalog.resolve("bsp", 2).roles(2, 1), sites_of(HOSTS))
    assert {str(who): site.number for who, site in homes.items()} == {"worker 0": 0, "worker 1": 1, "server 0": 2}


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        ("server0", "write ROLES:HOST"),
        ("masters:a", "is one of servers, workers"),
        ("servers:d", "no such host; there are a, b, c"),
        ("servers:a+b+c,workers:rest", "no host is left"),
    ],
)
def test_places_that_are_not_there(wish: str, words: str) -> None:
    with pytest.raises(PlanError, match=words):
        place(catalog.resolve("bsp", 4).roles(4, 2), sites_of(HOSTS), wish)


def test_addresses() -> None:
    assert this_host.interface_address("lo") == "127.0.0.1"
    assert this_host.interface_address("10.1.2.3") == "10.1.2.3" and this_host.interface_address("fd00::2") == "fd00::2"
    with pytest.raises(PlanError, match=r'interface="eth77": .* has .*lo'):
        this_host.interface_address("eth77")
    assert this_host.address_towards("tcp://127.0.0.1:9") == "127.0.0.1", "without one, the way to the launcher"
    assert this_host.address_towards("tcp://10.0.0.1:9", "lo") == "127.0.0.1"
    assert this_host.endpoint("fd00::2", "9") == "tcp://[fd00::2]:9"


def test_a_config_is_taken_out_of_the_store_of_a_rendezvous() -> None:
    """It has a secret in it."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    leader = StoreChannel(LaunchEnvironment(0, 2, 0, "127.0.0.1", port), 30)
    leader.hand_out([b"a config"])
    assert leader.store.check(["config/1"])
    taken: list[bytes] = []
    guest = threading.Thread(
        target=lambda: taken.append(StoreChannel(LaunchEnvironment(1, 2, 1, "127.0.0.1", port), 30).take())
    )
    guest.start()
    guest.join(30)
    assert taken == [b"a config"] and not leader.store.check(["config/1"])


def test_an_attempt_of_torchruns_finds_nothing_of_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its agent keeps one store over all of its restarts."""
    monkeypatch.delenv("TORCHELASTIC_RESTART_COUNT", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    first = StoreChannel(LaunchEnvironment(0, 2, 0, "127.0.0.1", port), 30)
    first.hand_out([b"a config"])
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    again = StoreChannel(LaunchEnvironment(0, 2, 0, "127.0.0.1", port), 30)
    assert first.store.check(["config/1"]) and not again.store.check(["config/1"])


# -- runs on two sites of this machine


def on_two_sites(
    room: Room, task: str, address: str = "127.0.0.1", prefixes: Sequence[Sequence[str]] = (), **given: Any
) -> Result:
    asked = request(task, "bsp", 2, options({"engine": "torchrun", "threads": 1, "steps": 5, **given}))
    return at(asked, SpawnedPlaces(room.warm, ["left", "right"], address, prefixes))


@pytest.mark.full
@pytest.mark.skipif(" lo\n" not in Path("/proc/net/if_inet6").read_text(), reason="this machine has no IPv6")
def test_hosts_meet_by_ipv6(room: Room) -> None:
    task = room.task()
    found = on_two_sites(room, task, "::1", stall="60s").weights
    assert not differing(found, covey.fit(task, "bsp", 2, steps=5, engine="simulated").weights)


def test_a_host_that_has_something_else_is_named(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    """Versions are compared before any role is started."""
    task = room.task(before_build="(HERE / 'built').touch()")
    monkeypatch.setattr(this_host, "version", lambda name: "0.0.1")
    with pytest.raises(PlanError, match=r"^host left has torch \S+, the launcher 0\.0\.1: make them the same"):
        on_two_sites(room, task, stall="60s")
    assert not list(room.path.glob("built"))


def test_what_lives_with_the_launcher_is_forked_from_the_shared_fork_server(room: Room) -> None:
    """So a second run in one process imports nothing on this machine, and sites have the time that the first took."""
    parents: list[int] = []
    watch = Watch(trained(1), lambda: parents.append(parent(parent(room.find("scorer 0")))))
    on_two_sites(room, room.task(before_step=SLOW), stall="60s", watcher=watch, steps=200)
    assert len(parents) == 1 and parents[0] in [server.process.pid for server in client.RUNNING]
    assert 0 < client.import_seconds() < 300


def test_after_a_failure_torchruns_agent_has_less_time_to_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torchrun_agent, "HASTE", 0.1)
    monkeypatch.setattr(torchrun_agent, "PATIENCE", 60.0)
    places = torchrun_agent.TorchrunPlaces(1)
    places.agent = subprocess.Popen(["sleep", "50"])
    places.close(well=False)
    assert places.agent.returncode == -signal.SIGKILL, "and did not end by itself"


def test_the_roles_of_a_rank_leave_no_bell_behind() -> None:
    before = len(os.listdir("/proc/self/fd"))
    roles = RankRoles(SiteConfig(site=0, launcher="", warm="", roles=["worker 0"]), Address("worker", 0))
    with roles:
        roles.leave()
    assert len(os.listdir("/proc/self/fd")) == before
    late = RankRoles(SiteConfig(site=0, launcher="", warm="", roles=["worker 0"]), Address("worker", 0))
    with late:
        pass
    late.leave()  # the loop of this process may end after all else


class ShippedTask(msgspec.Struct):
    """What of a site's config shipping looks at."""

    task: str
    code: bytes = b""


@pytest.mark.parametrize(("there", "shipped"), [("x = 1", False), ("x = 2", True), (None, True)])
def test_a_host_with_another_file_of_that_name_takes_the_one_that_came_along(
    tmp_path: Path, there: str | None, shipped: bool
) -> None:
    file, room = tmp_path / "task.py", tmp_path / "room"
    file.write_text("x = 1")
    config: Any = ShippedTask(f"{file}:name", shipping.packed(str(file)))
    file.unlink() if there is None else file.write_text(there)
    found, handed = shipping.settled(config, b"", room)
    assert found.task == (f"{room / 'task.py'}:name" if shipped else config.task)
    assert handover.opened(handed).file == (found.task if shipped else "")
    assert not shipped or (room / "task.py").read_text() == "x = 1"


def test_a_task_in_a_folder_with_a_colon_is_compared_too(tmp_path: Path) -> None:
    folder = tmp_path / "a:b"
    folder.mkdir()
    file = folder / "task.py"
    found = []
    for text in ("x = 1", "x = 2"):
        file.write_text(text)
        found.append(this_host.versions(str(file))["task"])
        assert this_host.versions(f"{file}:name")["task"] == found[-1] != "not there"
    assert found[0] != found[1]


@pytest.mark.full
def test_a_host_that_does_not_come_is_named(room: Room) -> None:
    never = ["sh", "-c", "exec sleep 100"]
    with pytest.raises(PeerLost, match=r"^no answer within \d+ s: host right; can they reach 127.0.0.1\?"):
        on_two_sites(room, room.task(), "127.0.0.1", [(), never], stall="2s")
