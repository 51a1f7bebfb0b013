"""One start of a job: the process that runs its command, passes on what the head wants, and says how it ended.

It does not need the head: when that dies, the job goes on, and the next head finds it by the lock that it holds.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType

import msgspec

from covey.decoding import WireFormat
from covey.engines.process.child_process import die_with_parent
from covey.errors import WireError
from covey.jobs.full_disk import FIRST, is_full, write_in_place
from covey.observe.facts import NOW
from covey.observe.journal import read_now

WANTED = "workers"  # a file in the folder of the job: how many workers it is to have
EVERY = 0.2  # seconds between two looks
AGAIN = 20.0  # seconds in which a worker comes or goes, or is asked once more
_WORKER = re.compile(rb"covey: worker ([0-9]+)")


class AttemptEnd(msgspec.Struct, frozen=True):
    """How a start of a job ended."""

    code: int


_ends: WireFormat[AttemptEnd] = WireFormat("end of a job", AttemptEnd, "json", most=1 << 12)


def exit_code(folder: Path, number: int) -> int | None:
    """Of a start of the job of this folder; None where nobody has written it down."""
    try:
        return _ends.read_file(folder / f"attempt-{number}.end").code
    except (FileNotFoundError, WireError):
        return None


class JobKeeper:
    """The command of a job, while it runs."""

    def __init__(self, folder: Path, number: int, lock: int, words: list[str]) -> None:
        self.folder, self.number = folder, number
        self._asked: dict[int, float] = {}  # processes of workers that are to go, and when they were told
        self._called = 0.0  # when a worker was asked for last
        self._began = time.time()
        os.pwrite(lock, str(os.getpid()).encode(), 0)
        signal.signal(signal.SIGTERM, self._end)
        for number_ in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number_, signal.SIG_IGN)
        self._ending = False
        # It does not inherit the lock: what a task forks may outlive the job. It dies with this process.
        self.child = subprocess.Popen(
            [sys.executable, "-P", "-m", "covey", *words], stdin=subprocess.DEVNULL,
            preexec_fn=_begin,  # noqa: PLW1509  # there is one thread
        )  # fmt: skip
        if self._ending:  # somebody asked meanwhile
            self.child.send_signal(signal.SIGTERM)

    def _end(self, number: int, frame: FrameType | None) -> None:
        """The head suspends or stops the job: its run keeps a checkpoint, and ends."""
        if not self._ending and hasattr(self, "child"):
            self.child.send_signal(signal.SIGTERM)
        self._ending = True

    def wait(self) -> None:
        """Until the command and what it left running have ended, and that is on the disk."""
        while True:
            try:
                code = self.child.wait(EVERY)
                break
            except subprocess.TimeoutExpired:
                self._resize()
        end_session(os.getpid())
        while True:  # without that file the job would run again; its room is there since the start
            try:
                return write_in_place(self.folder / f"attempt-{self.number}.end", msgspec.json.encode(AttemptEnd(code)))
            except OSError as error:
                if not is_full(error):
                    raise
            time.sleep(FIRST)

    def _resize(self) -> None:
        """Let workers go, or have some come, until there are as many as the head wants."""
        try:
            wanted = int((self.folder / WANTED).read_bytes()[:20])
        except (OSError, ValueError):
            return
        if self._ending or not self._training():
            return
        there = worker_processes(self.child.pid)
        now = time.monotonic()
        self._asked = {pid: at for pid, at in self._asked.items() if pid in there.values() and now - at < AGAIN}
        staying = sorted(rank for rank, pid in there.items() if pid not in self._asked)
        for rank in staying[wanted:]:
            self._asked[there[rank]] = now
            os.kill(there[rank], signal.SIGUSR2)  # it finishes its batch, and goes
        if len(there) < wanted and now - self._called > AGAIN / 10:
            self._called = now
            self.child.send_signal(signal.SIGUSR1)  # a worker joins

    def _training(self) -> bool:
        """Whether roles hear signals; before that a signal would kill them."""
        try:
            newest = max((self.folder / "runs").glob(f"*/{NOW}"), key=lambda file: file.stat().st_mtime)
            now = read_now(newest.parent) if newest.stat().st_mtime > self._began else None
        except (OSError, ValueError, WireError):
            return False
        return now is not None and now.phase == "training" and now.seconds > 0


def worker_processes(launcher: int) -> dict[int, int]:
    """The processes of a run's workers, by their ranks: descendants of its launcher that have such a name."""
    parents, titles = {}, {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(place.name)] = int((place / "stat").read_bytes().rpartition(b")")[2].split()[1])
            titles[int(place.name)] = (place / "cmdline").read_bytes()
        except (OSError, IndexError, ValueError):
            continue
    found = {}
    for pid, title in titles.items():
        match = _WORKER.match(title)
        above, steps = pid, 0
        while match and above not in (launcher, 0, 1) and steps < 20:
            above, steps = parents.get(above, 0), steps + 1
        if match and above == launcher:
            found[int(match[1])] = pid
    return found


def end_session(leader: int) -> None:
    """Kill what is left of the session that a keeper leads, but not this process: slots are free when a job is over."""
    own = os.getpid()
    if os.getsid(leader) != leader:
        return
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError, ValueError):
            session = int((place / "stat").read_bytes().rpartition(b")")[2].split()[3])
            if session == leader and int(place.name) != own:
                os.kill(int(place.name), signal.SIGKILL)


def _begin() -> None:
    die_with_parent()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


if __name__ == "__main__":
    folder, number, lock, *words = sys.argv[1:]
    JobKeeper(Path(folder), int(number), int(lock), words).wait()
