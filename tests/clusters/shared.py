"""A room around daemons that several runs use, as a Ray or a Spark that was there before: only covey's own must go."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from covey.errors import PeerLost
from tests.clusters.harness import GONE_WITHIN
from tests.real.harness import SLOW, Room, Watch, fit, trained
from tests.warm import Command


class SharedRoom(Room):
    """What counts as left behind are roles, fork servers and their directories; daemons are the test's own."""

    def left(self) -> list[str]:
        roles = [title for title in self.processes().values() if title.startswith("covey:")]
        return [
            *roles,
            *(str(path) for path in self.temporary.glob("covey-*") if not path.name.startswith("covey-ray")),
        ]

    def site(self) -> int:
        """The process of a site: it is none of covey's own titles, not this one, and talks over ZeroMQ."""
        found = (pid for pid, title in self.processes().items() if not title.startswith("covey:") and talks(pid))
        return next(pid for pid in found if pid != os.getpid())


def talks(pid: int) -> bool:
    return any(path.read_text().startswith("ZMQbg") for path in Path(f"/proc/{pid}/task").glob("*/comm"))


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def ended(process: subprocess.Popen[str] | Command) -> tuple[int, str, str]:
    """Exit code and output; a busy machine takes a minute and more to start an engine."""
    out, err = process.communicate(timeout=240)
    return process.returncode, out, err


@contextmanager
def inside(room: Room) -> Iterator[None]:
    """What is started in here belongs to the room."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("COVEY_ROOM", "TMPDIR"):
            patch.setenv(name, room.environment[name])
        patch.setattr(tempfile, "tempdir", None)
        yield


def names_the_dead_site(room: SharedRoom, engine: str, strategy: str, words: str) -> None:
    """Kill a site with -9 while it trains: the run ends in time, with its name, and its roles are gone."""
    watch = Watch(trained(40), lambda: os.kill(room.site(), signal.SIGKILL))
    with pytest.raises(PeerLost, match=words):
        fit(room.task(before_step=SLOW), strategy, 2, engine=engine, steps=2000, watcher=watch)
    assert watch.acted is not None
    assert time.monotonic() - watch.acted < GONE_WITHIN
    room.wait_empty(GONE_WITHIN - (time.monotonic() - watch.acted))


def its_own_goes_with_the_dead(room: Room, engine: str, victim: str) -> None:
    """On the command line, with daemons of covey's own: the exit code tells, and so does the last line."""
    task = room.task(before_step=f"(HERE / 'training').touch(); {SLOW}")
    process = room.start("-m", "covey", "run", task, "--engine", engine, "--workers", "2", "--steps", "5000")
    appears(room, "training")
    room.kill(victim)
    killed = time.monotonic()
    code, _, err = ended(process)
    assert time.monotonic() - killed < GONE_WITHIN
    assert code == 1 and f"{victim} exited with signal 9" in err and "Traceback" not in err
    room.wait_empty(GONE_WITHIN - (time.monotonic() - killed))


def appears(room: Room, pattern: str) -> None:
    until = time.monotonic() + 240
    while not list(room.path.glob(pattern)):
        assert time.monotonic() < until, f"no {pattern} came"
        time.sleep(0.005)
