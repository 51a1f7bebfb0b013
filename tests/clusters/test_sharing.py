"""Sites of one machine share its memory, whatever engine has started them; those that cannot say so, and train on."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Sequence
from typing import Any

import pytest

import covey
from covey.errors import PeerLost
from covey.observe.result import Result
from covey.run.clusters import at
from covey.run.options import options
from covey.run.request import request
from tests.clusters.harness import GONE_WITHIN, NUMBERS, finish
from tests.clusters.machines import machines, needs_namespaces
from tests.clusters.spawned import SpawnedPlaces
from tests.clusters.test_torchrun import asked, on_machine, result
from tests.real.harness import SLOW, Room, Watch, differing, fit, trained

LARGE: dict[str, Any] = {
    "model": "nn.Sequential(nn.Linear(6, 20_000), nn.Linear(20_000, 3))", "samples": 32,
}  # fmt: skip  # 800 KB


def on_two_sites(room: Room, task: str, strategy: str, prefixes: Sequence[Sequence[str]] = (), **given: Any) -> Result:
    """Train on two sites of this machine, the second of them behind a command."""
    asked = request(task, strategy, 2, options({"engine": "torchrun", "threads": 1, "stall": "60s", **given}))
    return at(asked, SpawnedPlaces(room.warm, ["left", "right"], "127.0.0.1", prefixes))


def test_two_sites_sum_in_the_memory_of_their_machine(room: Room) -> None:
    """In one run: sums are the engine's own, and so are the bits; every role holds the memory of all."""
    task, held = room.task(before_step=SLOW, **LARGE), {}

    def look() -> None:
        for who in ("worker 0", "worker 1", "scorer 0"):
            places = f"/proc/{room.find(who)}/fd"
            found = [os.stat(f"{places}/{name}") for name in os.listdir(places) if _is_ours(f"{places}/{name}")]
            held[who] = {(one.st_ino, one.st_size) for one in found}

    watch = Watch(trained(16), look)
    result = on_two_sites(room, task, "allreduce", steps=60, watcher=watch)
    assert result.notes["native bytes"] == result.traffic.bytes > 0
    assert held["worker 0"] == held["worker 1"] == held["scorer 0"]
    assert sum(size > 1_000_000 for _, size in held["worker 0"]) >= 2  # both have their weights and gradients in it
    assert not differing(result.weights, covey.fit(task, "allreduce", 2, steps=60, engine="simulated").weights)
    assert not [line for line in watch.said if "memory" in line]


def _is_ours(path: str) -> bool:
    try:
        return os.readlink(path).startswith("/memfd:covey")
    except OSError:
        return False


@pytest.mark.full
@pytest.mark.parametrize("strategy", ["bsp", "hogwild(momentum=drop)"])
def test_servers_and_hogwild_on_two_sites(room: Room, strategy: str) -> None:
    """Hogwild needs one memory for all roles of the run: sites of one machine have it."""
    task = room.task(**LARGE)
    result = on_two_sites(room, task, strategy, steps=12)
    assert result.samples == 2 * 12 * 4
    if strategy == "bsp":
        assert not differing(result.weights, covey.fit(task, strategy, 2, steps=12, engine="simulated").weights)


@pytest.mark.full
@needs_namespaces
def test_two_machines_of_two_sites_each(room: Room) -> None:
    """Each machine sums in its own memory, which on the second one a site has laid; one exchange goes between them."""
    pattern = "allreduce(pattern=hierarchical, local=0)"
    command = [*asked(room, pattern, "--steps", "10"), "--workers", "4"]
    with machines() as both:
        ended = [finish(agent) for agent in [on_machine(room, both, number, ["-m", *command], 2) for number in (0, 1)]]
    assert [code for code, _, _ in ended] == [0, 0], ended
    links = result(room).traffic.by_link
    home = {f"worker {rank}": rank // 2 for rank in range(4)}
    away = {link: size for link, size in links.items() if len({home[end] for end in link.split("->")}) == 2}
    assert away == {"worker 0->worker 2": 10 * 4 * NUMBERS, "worker 2->worker 0": 10 * 4 * NUMBERS}
    assert result(room).notes["native bytes"] == result(room).traffic.bytes - sum(away.values())


@pytest.mark.full
@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs root and setpriv")
def test_another_user_says_so_and_uses_sockets(room: Room) -> None:
    room.path.chmod(0o777)
    room.temporary.chmod(0o777)
    task, watch = room.task(**LARGE), Watch()
    readers = "+dac_override,+dac_read_search"  # of files, wherever this checkout is
    nobody = [
        "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", f"--inh-caps={readers}",
        f"--ambient-caps={readers}",
    ]  # fmt: skip
    result = on_two_sites(room, task, "allreduce", [(), nobody], steps=12, watcher=watch)
    assert "native bytes" not in result.notes
    (line,) = [line for line in watch.said if "memory" in line]
    assert line.startswith("not all roles of this machine share memory (they run as different users)")
    assert not differing(result.weights, covey.fit(task, "allreduce", 2, steps=12, engine="simulated").weights)


@pytest.mark.full
@pytest.mark.parametrize("engine", ["torchrun", "mpi"])
@pytest.mark.parametrize(("strategy", "victim"), [("bsp", "server 0"), ("allreduce", "worker 1")])
def test_a_role_that_is_killed_with_shared_memory(room: Room, engine: str, strategy: str, victim: str) -> None:
    """While it lends and borrows: it is named, and nothing is left."""
    watch = Watch(trained(20), lambda: room.kill(victim))
    with pytest.raises(PeerLost, match=f"^{victim} exited with signal 9, SIGKILL"):
        fit(room.task(**LARGE), strategy, 2, engine=engine, steps=20_000, watcher=watch)
    room.wait_empty(GONE_WITHIN)


@pytest.mark.full
def test_a_launcher_that_is_killed_leaves_no_memory(room: Room) -> None:
    """It has laid the memory of its machine, and gone before the run is over."""
    task = room.task(before_step="(HERE / 'training').touch()", **LARGE)
    process = room.start("-m", "covey", "run", task, "--engine", "mpi", "--workers", "2", "--steps", "20000")
    room.appears("training")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    room.wait_empty(GONE_WITHIN)
