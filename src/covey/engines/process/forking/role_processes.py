"""The role processes of one fork server, in a private directory; both are removed when the block ends."""

from __future__ import annotations

import os
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Protocol

import msgspec

from covey.address import Address
from covey.engines.process import liveness
from covey.engines.process.child_process import Launcher, read, write
from covey.engines.process.forking import fork_server, run_folder
from covey.engines.process.forking.fork_server import (
    NextIncarnation,
    RoleExit,
    RoleJob,
    RolesStarted,
    RoleStarted,
    ServerWarm,
    told,
)
from covey.engines.process.liveness import STALL, STOPPED, Silence, still
from covey.engines.transport import handles
from covey.errors import PeerLost
from covey.model.threads import limited_to

PATIENCE = 5.0  # seconds that the roles have to end by themselves when asked to, and their parent after them
HASTE = 1.0  # the same for one that may still be importing torch, after a failure
RUN_SERVER = "the fork server of the run"
OUT_OF_MEMORY = " (out of memory?)"  # what is said of a SIGKILL that nobody has planned
LONG = 64  # bytes: a directory for temporary files with a longer name leaves no room for a socket's path


class ForkServer(Protocol):
    """The fork server, as the process that started it sees it."""

    @property
    def pid(self) -> int: ...
    def signs(self) -> dict[str, tuple[int, object]]:
        """The processes without which there are no roles, by name: their numbers, and what changes while they live."""
        ...

    def signal(self, number: signal.Signals) -> None:
        """To it, all roles, and what they have started."""
        ...

    def loss(self) -> str:
        """How it ended, in words; it is not reaped yet, so that its process number stays taken."""
        ...

    def wait(self, patience: float) -> None:
        """Wait for its end, at most this number of seconds."""
        ...

    def reap(self) -> None: ...


Start = Callable[[socket.socket, socket.socket, Path, str, float], ForkServer]
"""How a fork server comes to life: given our end of the line and its own, the private directory, what it imports, and
for how many seconds it may see no sign of this process."""


class RoleProcesses:
    """The processes of a run on this machine."""

    def __init__(self, warm: str, threads: int = 1, start: Start | None = None, stall: float = STALL) -> None:
        """Start the fork server, which imports the module `warm` while this process does other things.

        `threads` is with how many a role computes; a fork server that is not started here knows that already. `stall`
        is for how many seconds it may stand still, or see this process do so.
        """
        where = tempfile.gettempdir()
        self.directory = Path(where if len(os.fsencode(where)) <= LONG else "/tmp", f"covey-{secrets.token_hex(4)}")
        self.line, theirs = socket.socketpair()
        with theirs, _undisturbed():
            self.fork_server = (start or partial(spawned, threads))(self.line, theirs, self.directory, warm, stall)
        run_folder.sweep(self.directory.parent)
        try:  # last: if this process is killed here, the fork server removes it
            self._lock = run_folder.make(self.directory)  # the sockets in it are this user's alone
        except OSError:
            self.line.close()
            self.fork_server.reap()
            raise
        self.silence: Silence[str] = Silence(stall)
        self.warm = False  # the fork server has imported everything
        self.roles: list[Address] = []
        self.pids: dict[Address, int] = {}
        self.alive: set[Address] = set()

    def __enter__(self) -> RoleProcesses:
        return self

    @property
    def wakeups(self) -> tuple[int, ...]:
        """Readable when a role has ended."""
        return (self.line.fileno(),)

    def start_roles(self, job: RoleJob, memory: Sequence[int] = ()) -> None:
        """Start roles; `memory` are the handles of what they share with others of this machine."""
        self.roles, self.alive = job.roles, set(job.roles)
        try:
            write(self.line, msgspec.msgpack.encode(msgspec.structs.replace(job, handles=len(memory))))
            handles.give(self.line, memory)
        except OSError:
            raise self._lost() from None

    def renew(self, who: Address, work: bytes) -> None:
        """Start a role again whose process was lost."""
        self.alive.add(who)
        self.pids.pop(who, None)
        try:
            write(self.line, msgspec.msgpack.encode(NextIncarnation(who=who, work=work)))
        except OSError:
            raise self._lost() from None

    def signal_role(self, who: Address, number: int) -> None:
        """Send the process of a role a signal, if it lives."""
        if who in self.alive and who in self.pids:
            with suppress(ProcessLookupError):
                os.kill(self.pids[who], number)

    def abandon(self) -> None:
        """The roles were not asked to leave, so there is nothing to wait for when the block ends."""
        self.alive.clear()

    def exits(self) -> list[tuple[Address, str]]:
        """Who has ended since the last time, and how; never waits."""
        found = []
        while select.select([self.line], [], [], 0)[0]:
            match self._told():
                case ServerWarm():
                    self.warm = True
                case RolesStarted(pids):
                    self.pids = dict(zip(self.roles, pids, strict=True))
                case RoleStarted(who, pid):
                    self.pids[who] = pid
                case RoleExit(who, status):
                    self.alive.discard(who)
                    found.append((who, describe(os.waitstatus_to_exitcode(status))))
        if self.silence.due:
            self._check_signs()
        return found

    def _check_signs(self) -> None:
        signs = self.fork_server.signs()
        for name in self.silence.look({name: sign for name, (_, sign) in signs.items()}):
            raise PeerLost(still(name, liveness.state(signs[name][0]), self.silence.stall))

    def _told(self) -> ServerWarm | RolesStarted | RoleStarted | RoleExit:
        try:
            return told.read(read(self.line), RUN_SERVER)
        except (SystemExit, ConnectionError):
            raise self._lost() from None

    def sign(self, who: Address) -> object:
        """What changes while a role works; before it starts, that of the fork server."""
        return liveness.sign(self.pids[who]) if who in self.pids else liveness.cpu(self.fork_server.pid)

    def state(self, who: Address) -> str:
        """The state of a role's process, as Linux reports it."""
        return liveness.state(self.pids.get(who, self.fork_server.pid))

    def signal(self, number: signal.Signals) -> None:
        """To all roles, what they have started, and the fork server."""
        self.fork_server.signal(number)

    def _lost(self) -> PeerLost:
        """The fork server has ended; it is reaped only when the block ends."""
        return PeerLost(self.fork_server.loss())

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Give the roles a moment to go by themselves when all went well, then see to it."""
        try:
            with suppress(PeerLost):
                if error is None:
                    self._see_off()
        finally:
            self.line.close()  # the fork server kills what is left and removes the directory
            stopped = liveness.state(self.fork_server.pid) in STOPPED
            self._reap(0.0 if stopped else PATIENCE if error is None else HASTE)
            shutil.rmtree(self.directory, ignore_errors=True)
            self._lock.close()

    def _see_off(self) -> None:
        until = self.silence.awake + PATIENCE
        while any(self.state(who) not in STOPPED for who in self.alive) and self.silence.awake < until:
            select.select([self.line], [], [], self.silence.every)
            self.exits()

    def _reap(self, patience: float) -> None:
        self.fork_server.wait(patience)
        self.signal(signal.SIGKILL)  # all that is left of the run, the fork server itself included
        self.fork_server.reap()


class Child:
    """A fork server that is a child of this process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def signs(self) -> dict[str, tuple[int, object]]:
        return {RUN_SERVER: (self.pid, liveness.cpu(self.pid))}

    def signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):  # it may have no group of its own yet
            os.killpg(self.pid, number)

    def loss(self) -> str:
        end = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        assert end is not None
        return f"{RUN_SERVER} {describe(end.si_status if end.si_code == os.CLD_EXITED else -end.si_status)}"

    def wait(self, patience: float) -> None:
        ended, poll = os.pidfd_open(self.pid), select.poll()
        poll.register(ended, select.POLLIN)
        poll.poll(patience * 1000)
        os.close(ended)

    def reap(self) -> None:
        os.waitpid(self.pid, 0)


def spawned(
    threads: int, ours: socket.socket, theirs: socket.socket, directory: Path, warm: str, stall: float
) -> ForkServer:
    """A fork server as a program of its own."""
    path = os.pathsep.join(path for path in sys.path if path)
    environment = {**os.environ, **limited_to(threads), "PYTHONPATH": path}
    told = [str(theirs.fileno()), str(directory), warm, str(stall), " " * 32]  # the last is room for a title
    # A group of its own, which the terminal's Ctrl-C does not reach, but no session: Linux shares the CPU out among
    # sessions first, and on a busy machine busy roles in one of their own can keep the launcher waiting for seconds.
    return Program(subprocess.Popen(
        [sys.executable, "-m", fork_server.__name__, *told],
        pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, env=environment, process_group=0,
    ))  # fmt: skip


class Program(Child):
    """A fork server as a program of its own."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        super().__init__(process.pid)
        self.process = process

    def reap(self) -> None:
        self.process.wait()


def forked(ours: socket.socket, theirs: socket.socket, directory: Path, warm: str, stall: float) -> Child:
    """A fork server that need not import again what this process has; for one that has no threads, and no GPU, yet."""
    pid = os.fork()
    if pid:
        return Child(pid)
    try:
        os.setpgid(0, 0)
        ours.close()
        fork_server.main(theirs.detach(), str(directory), warm, Launcher(stall))
    except Exception:
        traceback.print_exc()
    finally:
        os._exit(0)  # no role was forked, or all have ended


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Keep a Ctrl-C from a process that is being started, while it is still in this group; it inherits this."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def describe(code: int) -> str:
    """How a process ended, in words; a negative code is a signal."""
    if code >= 0:
        return f"exited with code {code}"
    hint = OUT_OF_MEMORY if -code == signal.SIGKILL else ""
    return f"exited with signal {-code}, {signal.Signals(-code).name}{hint}"
