"""The roles that one nursery bears on this machine, in a private directory; both are gone when the block ends."""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

import msgspec

from covey.engines.process import nursery
from covey.engines.process.nursery import Exit, Job, read, write
from covey.errors import PeerLost
from covey.message import Address

PATIENCE = 5.0  # seconds that the roles have to end by themselves, once told to
HASTE = 1.0  # seconds that a nursery has which may still be importing torch, after a failure
LONG = 64  # bytes: a directory for temporary files with a longer name leaves no room for a socket's path


class Brood:
    """The processes of a run on this machine."""

    def __init__(self, warm: str) -> None:
        """Start the parent of the roles, which imports the module `warm` while this process does other things."""
        where = None if len(os.fsencode(tempfile.gettempdir())) <= LONG else "/tmp"
        # mode 0700: the sockets in it are this user's alone
        self.directory = Path(tempfile.mkdtemp(prefix="covey-", dir=where))
        self.line, theirs = socket.socketpair()
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        with theirs, _undisturbed():
            given = [str(theirs.fileno()), str(self.directory), warm, " " * 32]  # the last is room for a title
            self.nursery = subprocess.Popen(
                [sys.executable, "-m", nursery.__name__, *given],
                pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, env=environment, start_new_session=True,
            )  # fmt: skip
        self.alive: set[Address] = set()

    def __enter__(self) -> Brood:
        return self

    def bear(self, job: Job) -> None:
        try:
            write(self.line, msgspec.msgpack.encode(job))
        except OSError:
            raise self._lost() from None
        self.alive = set(job.roles)

    def exits(self) -> list[tuple[Address, str]]:
        """Who has ended since the last time, and how; never waits."""
        found = []
        while select.select([self.line], [], [], 0)[0]:
            found.append(self._exit())
        return found

    def _exit(self) -> tuple[Address, str]:
        try:
            exit = msgspec.msgpack.decode(read(self.line), type=Exit)
        except (SystemExit, ConnectionError):
            raise self._lost() from None
        self.alive.discard(exit.who)
        return exit.who, describe(os.waitstatus_to_exitcode(exit.status))

    def _lost(self) -> PeerLost:
        """The parent of the roles has ended; it is buried only when the block ends, so that its number stays ours."""
        end = os.waitid(os.P_PID, self.nursery.pid, os.WEXITED | os.WNOWAIT)
        assert end is not None
        code = end.si_status if end.si_code == os.CLD_EXITED else -end.si_status
        return PeerLost(f"the parent of all roles {describe(code)}")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Give the roles a moment to go by themselves when all went well, then see to it."""
        try:
            self.line.settimeout(PATIENCE)
            with suppress(TimeoutError, PeerLost):
                while self.alive and error is None:
                    self._exit()
        finally:
            self.line.close()  # the nursery kills what is left and removes the directory
            self._bury(PATIENCE if error is None else HASTE)
            shutil.rmtree(self.directory, ignore_errors=True)

    def _bury(self, patience: float) -> None:
        ended, poll = os.pidfd_open(self.nursery.pid), select.poll()
        poll.register(ended, select.POLLIN)
        poll.poll(patience * 1000)
        os.close(ended)
        with suppress(ProcessLookupError):  # it may have died before it had a group of its own
            os.killpg(self.nursery.pid, signal.SIGKILL)  # all that is left of the run, the nursery itself included
        self.nursery.wait()


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
    hint = " (out of memory?)" if -code == signal.SIGKILL else ""
    return f"exited with signal {-code}, {signal.Signals(-code).name}{hint}"
