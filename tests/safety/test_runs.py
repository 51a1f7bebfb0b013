"""Runs on one machine: private to their user, and apart from one another, whatever a crowd of strangers does."""

from __future__ import annotations

import os
import pwd
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

import covey
from covey.engines.process import shared_vector
from covey.engines.transport import keys
from covey.errors import WireError
from covey.observe.result import Result
from covey.run.clusters import at
from covey.run.options import options
from covey.run.request import request
from tests.clusters.spawned import SpawnedPlaces
from tests.real.harness import SLOW, Room, Watch, differing, fit, trained
from tests.safety.test_strangers import flood

SNOOP = """
import os, socket, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
def tries(name, act):
    try:
        act()
    except OSError as error:
        print(name, type(error).__name__)
    else:
        print(name, "SUCCEEDED")
folder, pid, handle = sys.argv[1:]
tries("list", lambda: os.listdir(folder))
for name in ("launcher", "worker-0", "scorer-0"):
    tries("connect", lambda: socket.socket(socket.AF_UNIX).connect(f"{folder}/{name}"))
tries("make", lambda: open(f"{folder}/new", "w"))
tries("memory", lambda: open(f"/proc/{pid}/fd/{handle}", "rb"))
"""


def test_another_user_gets_nothing(room: Room) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can become another user")
    room.path.chmod(0o755)  # only the run's own folder may be in the way
    room.temporary.chmod(0o755)
    seen: dict[str, Any] = {}

    def look() -> None:
        (folder,) = room.temporary.glob("covey-*")
        seen["modes"] = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.iterdir())}
        pid = room.find("worker 0")
        links = {int(p.name): os.readlink(p) for p in Path(f"/proc/{pid}/fd").iterdir() if p.exists()}
        handle = next(n for n, link in links.items() if link.startswith("/memfd:covey"))
        seen["memory"] = stat.S_IMODE(Path(f"/proc/{pid}/fd/{handle}").stat().st_mode)
        snoop = [sys.executable, "-c", SNOOP, str(folder), str(pid), str(handle)]
        seen["said"] = subprocess.run(snoop, capture_output=True, text=True, check=True, cwd="/").stdout.split("\n")

    fit(room.task(before_step=SLOW), "bsp", 2, steps=200, watcher=Watch(trained(8), look))
    folder, *sockets = seen["modes"].items()
    assert folder[1] == 0o700
    assert {"launcher", "worker-0", "worker-1", "server-0", "scorer-0"} <= dict(sockets).keys()
    assert {mode for _, mode in sockets} == {0o600}
    assert seen["memory"] == 0o600
    assert pwd.getpwuid(65534)
    assert [line.split()[-1] for line in seen["said"] if line] == ["PermissionError"] * 6


def test_shared_memory_has_no_name() -> None:
    before = set(Path("/dev/shm").iterdir())
    shared_vector.create()
    try:
        assert set(Path("/dev/shm").iterdir()) == before
        assert stat.S_IMODE(os.fstat(shared_vector.FILE[-1]).st_mode) == 0o600
    finally:
        os.close(shared_vector.FILE.pop())


# --- two runs at once, one over tcp with strangers at its doors


def on_two_hosts(room: Room, task: str, strategy: str, **given: Any) -> Result:
    """Train on two sites of this machine, over tcp."""
    asked = request(task, strategy, 2, options({"engine": "torchrun", "threads": 1, "stall": "60s", **given}))
    return at(asked, SpawnedPlaces(room.warm, ["left", "right"], "127.0.0.1"))


def doors(room: Room) -> list[str]:
    """Where the processes of this room listen on tcp."""
    mine = set()
    for pid in [*room.processes(), os.getpid()]:
        for handle in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                mine.add(os.readlink(handle).removeprefix("socket:[").removesuffix("]"))
            except OSError:
                continue
    rows = [line.split() for file in ("tcp", "tcp6") for line in Path("/proc/net", file).read_text().splitlines()[1:]]
    listening = {row[1].rpartition(":")[2] for row in rows if row[3] == "0A" and row[9] in mine}
    return [f"tcp://127.0.0.1:{int(port, 16)}" for port in sorted(listening)]


@contextmanager
def kept_pairs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[keys.Pair]]:
    """Every key that is made meanwhile."""
    made: list[keys.Pair] = []

    def new() -> keys.Pair:
        made.append(keys.new_pair())
        return made[-1]

    monkeypatch.setattr("covey.engines.cluster.cluster_keys.new_pair", new)
    yield made


def test_two_runs_and_a_crowd_of_strangers(
    room: Room, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    task = room.task(before_step=SLOW)
    seen: dict[str, Any] = {"crowd": []}

    def gather() -> None:
        found = seen["doors"] = doors(room)
        seen["lines"] = lines_of(room)
        crowd = threading.Thread(target=flood, args=(found, 600))
        crowd.start()
        seen["crowd"].append(crowd)

    flags = "--strategy bsp --workers 2 --steps 60 --threads 1 --quiet --save beside.safetensors"
    beside = room.start("-m", "covey", "run", task, *flags.split())
    with kept_pairs(monkeypatch) as pairs:
        watch = Watch(trained(16), gather)
        kept = room.path / "kept"
        result = on_two_hosts(room, task, "bsp", steps=120, watcher=watch, checkpoint=kept, every="1s")
    seen["crowd"][0].join()
    out, err = beside.communicate(timeout=90)
    assert beside.returncode == 0, err
    alone = covey.fit(task, "bsp", 2, steps=60, engine="simulated").weights
    assert not differing(load_file(room.path / "beside.safetensors"), alone), "the other run was harmed"

    assert len(seen["doors"]) >= 6, "the gate, the control line, the scorer, a server and two workers"
    expected = covey.fit(task, "bsp", 2, steps=120, engine="simulated").weights
    assert not differing(result.weights, expected), "the run was harmed"
    refused = [line for line in result.failures if "did not speak as members of this run do" in line]
    assert {line.split(":")[0] for line in refused} >= {
        "refused by worker 0",
        "refused by worker 1",
        "refused by server 0",
    }
    assert {line.partition(" (")[0] for line in watch.said} >= {line.partition(" (")[0] for line in refused}

    secrets = [pair.secret for pair in pairs]
    shown = [*seen["lines"], out, err, *capfd.readouterr(), result.to_json(), repr(pairs)]
    shown += [path.read_text(errors="replace") for path in kept.rglob("*.*") if path.is_file()]
    assert len(secrets) >= 7
    assert not [secret for secret in secrets for text in shown if secret in text]


def lines_of(room: Room) -> list[str]:
    """What anybody can see of the room's processes, and what their user can."""
    found = []
    for pid in room.processes():
        for file in ("cmdline", "environ", "comm"):
            try:
                found.append(Path(f"/proc/{pid}/{file}").read_text(errors="replace"))
            except OSError:
                continue
    return found


def test_insecure_says_what_it_gives_up(room: Room) -> None:
    watch = Watch()
    result = on_two_hosts(room, room.task(), "local_sgd", steps=5, insecure=True, watcher=watch)
    assert result.samples and not result.failures
    assert [line for line in watch.said if line.startswith("insecure=True: ")]


# --- a member that goes wrong


def poisoned(room: Room, who: str = "covey: worker 1") -> str:
    """A task in which worker 1 gets a NaN in its fourth step."""
    return room.task(
        before_step=f'if CALLS[0] == 4 and "{who}" in open("/proc/self/cmdline").read(): POISON.append(1)',
        more="POISON = []\ndef step(model, batch):\n    before_step()\n"
        "    loss = nn.functional.cross_entropy(model(batch[0]), batch[1])\n"
        '    return loss * float("nan") if POISON else loss',
    )  # fmt: skip


@pytest.mark.parametrize("strategy", ["asynchronous", pytest.param("gosgd(probability=1.0)", marks=pytest.mark.full)])
def test_a_worker_that_diverges_is_named(room: Room, strategy: str) -> None:
    with pytest.raises(WireError, match=r"^worker 1 sent (server 0|worker 0) a (Push|Gossip)( of step 3)? with NaN"):
        covey.fit(poisoned(room), strategy, 2, steps=50, threads=1)
