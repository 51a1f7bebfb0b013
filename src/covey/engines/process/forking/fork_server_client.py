"""The launcher's client of its fork server: it starts one when needed, keeps it, and replaces it if it does not fit."""

from __future__ import annotations

import atexit
import math
import os
import select
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any, Protocol

import msgspec

from covey.engines.process import liveness
from covey.engines.process.child_process import read, write
from covey.engines.process.forking import shared_fork_server
from covey.engines.process.forking.role_processes import describe
from covey.engines.process.forking.run_fork_server import SERVER, RunForkServer
from covey.engines.process.forking.shared_fork_server import ROLES, ForkRequest, Ready, reports
from covey.engines.process.inherited import environment as own_environment
from covey.engines.process.inherited import files, fixed, in_order, inherited
from covey.engines.transport import handles
from covey.model.threads import limited_to


class Process(Protocol):
    """What is asked of a process that this one has started; a `subprocess.Popen` is one."""

    pid: int
    returncode: int | Any

    def poll(self) -> int | None: ...
    def kill(self) -> None: ...
    def wait(self) -> int: ...


class SharedForkServer:
    """The process that forks, as its launcher holds it."""

    def __init__(self, process: Process, line: socket.socket, environment: Mapping[bytes, bytes]) -> None:
        self.process, self.line, self.fixed = process, line, fixed(environment)
        self.ready = False
        self.took = 0.0  # seconds that its imports took
        self.speaking = Lock()  # a request and its handles are sent together

    @property
    def pid(self) -> int:
        return self.process.pid

    def serves(self, needed: tuple[object, ...]) -> bool:
        """Whether a fork of it would be what a new process is."""
        return self.fixed == needed and self.process.poll() is None and not self.stopped()

    def stopped(self) -> bool:
        return liveness.state(self.process.pid) in liveness.STOPPED

    def fork(self, line: socket.socket, request: ForkRequest) -> RunForkServer:
        report, theirs = socket.socketpair()
        with theirs, files() as opened:
            self.ask(request, [theirs.fileno(), line.fileno(), *opened])
        return RunForkServer(self, report)

    def ask(self, request: ForkRequest, given: Sequence[int]) -> None:
        """Send a request with its handles; OSError if the server is gone, or retired."""
        with self.speaking:
            write(self.line, msgspec.msgpack.encode(request))
            handles.give(self.line, given)

    def imports(self) -> bool:
        """Whether it still imports what roles need; of one that was retired nobody hears."""
        if self.line.fileno() < 0:
            return False
        if not self.ready and select.select([self.line], [], [], 0)[0]:
            self.ready = True  # it says nothing else on this line
            with suppress(SystemExit, OSError):  # it has ended
                if isinstance(word := reports.read(read(self.line), SERVER), Ready):
                    self.took = word.took
        return not self.ready

    def own(self) -> bool:
        return self.process.poll() is None

    def release(self) -> None:
        if self.stopped():
            self.process.kill()
            self.process.wait()

    def loss(self) -> str:
        return describe(self.process.wait())

    def retire(self) -> None:
        """It ends with its last run, or at once if it can do nothing."""
        self.line.close()
        if self.stopped():
            self.process.kill()
        RETIRED.append(self.process)

    def kill(self) -> None:
        self.line.close()
        self.process.kill()
        self.process.wait()

    def forget(self) -> None:
        """(In a fork of the launcher) It is not this process's own."""
        self.line.close()
        self.process.returncode = 0


LOCK = Lock()
KEPT = 2  # servers: runs of one worker and of several often take turns, and have other numbers of threads
RUNNING: list[SharedForkServer] = []  # the one that was asked last comes first
RETIRED: list[Process] = []  # that may have a run yet


def forked_by_server(
    threads: int, ours: socket.socket, theirs: socket.socket, directory: Path | None, warm: str, stall: float, *,
    frozen: float = math.inf, entry: str = ROLES,
) -> RunForkServer:  # fmt: skip
    """The fork server of a run (or what `entry` names), forked by the shared one, which is started if none will do.

    It ends when this process does nothing for `stall` seconds, or `frozen` if that is less.
    """
    folder = str(directory) if directory else ""
    environment = own_environment(**limited_to(threads))
    request = ForkRequest(
        inherited=inherited(environment), directory=folder, warm=warm, stall=min(stall, frozen), entry=entry
    )  # fmt: skip
    with LOCK:
        RETIRED[:] = [process for process in RETIRED if process.poll() is None]
        needed = fixed(environment)
        RUNNING.sort(key=lambda server: not server.serves(needed))
        if RUNNING and RUNNING[0].serves(needed):
            with suppress(OSError):  # it may have ended this very moment
                return RUNNING[0].fork(theirs, request)
        while RUNNING and (len(RUNNING) >= KEPT or not RUNNING[-1].own() or RUNNING[-1].stopped()):
            RUNNING.pop().retire()
        RUNNING.insert(0, started(environment, folder))
        return RUNNING[0].fork(theirs, request)


def started(environment: Mapping[bytes, bytes], directory: str) -> SharedForkServer:
    """A fork server as a program of its own; `directory` is the first run's."""
    line, theirs = socket.socketpair()
    told = [str(theirs.fileno()), str(os.getpid()), directory, " " * 32]  # the last is room for a title
    # A group of its own, which the terminal's Ctrl-C does not reach, but no session: see `role_processes.spawned`.
    with theirs, files() as (out, err, _):
        process = subprocess.Popen(
            [sys.executable, "-m", shared_fork_server.__name__, *told], pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=in_order(environment), process_group=0,
        )  # fmt: skip
    return SharedForkServer(process, line, environment)


def import_seconds() -> float:
    """How long the imports of this process's fork server took; 0 while it has not finished them."""
    return 0.0 if not RUNNING or RUNNING[0].imports() else RUNNING[0].took


def close() -> None:
    """End the fork server of this process now; a next run has another."""
    with LOCK:
        while RUNNING:
            RUNNING.pop().kill()


def _forget() -> None:
    """(In a fork of the launcher) The server is the other's."""
    for server in RUNNING:
        server.forget()
    for process in RETIRED:
        process.returncode = 0
    RUNNING.clear()
    RETIRED.clear()
    LOCK.release()


atexit.register(close)
os.register_at_fork(before=LOCK.acquire, after_in_parent=LOCK.release, after_in_child=_forget)
