"""Processes on this machine: a private directory of sockets, roles forked from a warm parent, nothing left behind."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import msgspec
import zmq

from covey.engines.process import control, nursery
from covey.engines.process.driver import SCORER
from covey.engines.process.nursery import Exit, Job, read, write
from covey.engines.process.role import Desks
from covey.message import Address


class LocalCrew:
    """The run's processes and their private directory; both are gone when the block ends."""

    def __init__(self, patience: float | None = 5.0) -> None:
        self.patience = patience  # seconds that the roles have to end by themselves, once told to
        self.directory = Path(tempfile.mkdtemp(prefix="covey-"))  # mode 0700: the sockets in it are this user's alone
        self.line, theirs = socket.socketpair()
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        with theirs:
            self.nursery = subprocess.Popen(
                [sys.executable, "-m", nursery.__name__, str(theirs.fileno()), " " * 32],  # room for a title
                pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, env=environment, start_new_session=True,
            )  # fmt: skip
        self.bell = self.line.fileno()
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.alive: set[Address] = set()

    def __enter__(self) -> LocalCrew:
        return self

    def desks(self, roles: Sequence[Address]) -> Desks:
        """Where everybody will be found."""
        book = {who: f"ipc://{self.directory}/{who.role}-{who.rank}" for who in [*roles, SCORER]}
        return Desks(book, f"ipc://{self.directory}/launcher")

    def start(self, desks: Desks, entry: str, work: bytes) -> control.Switchboard:
        """Have the roles born; each calls `entry` with the work and its own address."""
        roles = list(desks.book)
        board = control.Switchboard(self.context, desks.launcher, roles)
        job = Job(directory=str(self.directory), entry=entry, roles=roles, work=work)
        write(self.line, msgspec.msgpack.encode(job))
        self.alive = set(roles)
        return board

    def exits(self) -> list[tuple[Address, str]]:
        ended = []
        try:
            exit = msgspec.msgpack.decode(read(self.line), type=Exit)
        except (SystemExit, OSError):
            lost = [(who, "is gone: the parent of all roles was killed") for who in sorted(self.alive)]
            self.alive.clear()
            return lost
        self.alive.discard(exit.who)
        ended.append((exit.who, describe(exit.status)))
        return ended

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Give the roles a moment to go by themselves when all went well, then see to it."""
        if error is None:
            self.line.settimeout(self.patience)
            while self.alive and self.exits():
                pass
        self.line.close()  # the nursery kills what is left and removes the directory
        try:
            self.nursery.wait(5)
        except subprocess.TimeoutExpired:
            os.killpg(self.nursery.pid, signal.SIGKILL)
            self.nursery.wait()
        self.context.destroy(linger=0)
        shutil.rmtree(self.directory, ignore_errors=True)


def describe(status: int) -> str:
    """How a process ended, in words."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        name = signal.Signals(number).name
        hint = " (out of memory?)" if number == signal.SIGKILL else ""
        return f"exited with signal {number}, {name}{hint}"
    return f"exited with code {os.waitstatus_to_exitcode(status)}"
