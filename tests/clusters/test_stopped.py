"""On every engine whoever is stopped ends the run with its name: a role, a site, what the engine runs, the launcher."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

from covey.engines.lab import iproute
from tests.clusters.shared import appears, ended, parent
from tests.real.harness import SLOW, Room

STALL = 3.0
ENDED_WITHIN = 20.0  # seconds besides: an engine's daemons take their time to leave
ENGINES = {"torchrun": "torch", "mpi": "mpi4py", "ray": "ray", "spark": "pyspark", "lab(hosts=2)": ""}
TOLD = {
    "role": r"worker 1 was stopped by a signal: no report and no CPU use for 3 s",
    "site": r"worker 1 was lost with host \S+( site \d,)? of which nothing was heard for \d",
    "engine": r"\(process \d+\) was stopped by a signal: no report and no CPU use for 3 s",
    "launcher": r"the launcher itself was stopped for \d+ s, longer than 3 s: its roles ended",
}

pytestmark = [pytest.mark.alone, pytest.mark.full]


@pytest.mark.parametrize("what", TOLD)
@pytest.mark.parametrize("engine", ENGINES)
def test_whoever_is_stopped_is_named(room: Room, engine: str, what: str) -> None:
    if ENGINES[engine] and find_spec(ENGINES[engine]) is None:
        pytest.skip(f"{ENGINES[engine]} is not installed")
    if shutil.which("ss") is None:
        pytest.skip("ss, of iproute2, is not installed")
    if engine.startswith("lab") and iproute.missing():
        pytest.skip(iproute.missing())
    task = room.task(before_step=f"CALLS[0] > 5 and (HERE / 'training').touch(); {SLOW}")
    asked = ["--engine", engine, "--strategy", "asynchronous", "--workers", "2", "--stall", f"{STALL:g}s", "--quiet"]
    process = room.start("-m", "covey", "run", task, "--steps", "100000", *asked)
    appears(room, "training")
    role = room.find("worker 1")
    site = site_of(role)
    victim = {"role": role, "site": site, "engine": parent(site), "launcher": process.pid}[what]
    os.kill(victim, signal.SIGSTOP)
    stopped = time.monotonic()
    if what == "launcher":
        wait_for_no_roles(room, stopped + 2 * STALL + ENDED_WITHIN)
        os.kill(process.pid, signal.SIGCONT)
    code, _, err = ended(process)
    assert time.monotonic() - stopped < 2 * STALL + ENDED_WITHIN
    assert code == 1, err
    assert re.search(TOLD[what], " ".join(err.split())) and "Traceback" not in err, err
    room.wait_empty()


@pytest.mark.parametrize("engine", ["torchrun", "mpi"])
def test_a_site_that_is_stopped_before_it_comes_is_named(room: Room, engine: str) -> None:
    task = room.task()
    process = room.start("-m", "covey", "run", task, "--engine", engine, "--workers", "2", "--stall", "2s", "--quiet")
    site = first_site(room, {"torchrun": "covey.engines.torchrun_agent", "mpi": "covey.engines.mpi_site"}[engine])
    os.kill(site, signal.SIGSTOP)
    code, _, err = ended(process)
    assert code == 1 and re.search(rf"\(process {site}\) was stopped by a signal", " ".join(err.split())), err
    room.wait_empty()


def site_of(role: int) -> int:
    """The process at the other end of the line of a role's parent, which a fork server that others share has forked."""
    listed = subprocess.run(["ss", "-xpH"], capture_output=True, text=True, check=True).stdout
    pairs = re.findall(r"\* (\d+) +\* (\d+) +users:\(\(.*?pid=(\d+)", listed)
    theirs = {peer for _, peer, pid in pairs if int(pid) == parent(role)}
    return next(int(pid) for own, _, pid in pairs if own in theirs and int(pid) != parent(role))


def first_site(room: Room, module: str) -> int:
    """The first process that is to be a site; agents have arguments, or are no Python."""
    until = time.monotonic() + 240
    while time.monotonic() < until:
        for pid, title in room.processes().items():
            if re.search(rf"-m {module}( beside)?$", title) and "leash" not in title and "mpirun" not in title:
                return pid
    raise AssertionError(f"no {module} among {room.processes()}")


def wait_for_no_roles(room: Room, until: float) -> None:
    while roles := [title for title in room.processes().values() if title.startswith("covey: ")]:
        assert time.monotonic() < until, roles
        time.sleep(0.05)


def test_the_kernel_tells_who_is_whose_child() -> None:
    """What a role has started counts as its own work, which takes a kernel with these files."""
    assert Path(f"/proc/self/task/{os.getpid()}/children").exists()
