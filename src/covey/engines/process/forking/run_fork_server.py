"""The fork server of a run, as the process that asked the shared one for it sees it: its number, its life, its end."""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from contextlib import suppress
from typing import Protocol

from covey.engines.process import liveness
from covey.engines.process.child_process import read
from covey.engines.process.forking.role_processes import HASTE, RUN_SERVER, describe
from covey.engines.process.forking.shared_fork_server import Ended, Forked, ForkRefused, reports
from covey.engines.transport import handles

SERVER = "the shared fork server"


class ForkingServer(Protocol):
    """The process that forks, as one that has asked it for a fork sees it."""

    @property
    def pid(self) -> int: ...
    def stopped(self) -> bool: ...
    def imports(self) -> bool:
        """Whether it may still import what roles need."""
        ...

    def own(self) -> bool:
        """Whether it lives, and is this process's own."""
        ...

    def release(self) -> None:
        """A run is over: a stopped one would stay so for ever."""
        ...

    def loss(self) -> str:
        """How it ended, in words."""
        ...


class RunForkServer:
    """The fork server of a run, which the shared one has forked, or will fork once it has imported torch."""

    def __init__(self, server: ForkingServer, report: socket.socket) -> None:
        self.server, self.report = server, report
        self.forked_pid = 0  # its number
        self.process = -1  # readable when it has ended
        self.end = ""
        self.hears = True  # the server may report more
        self.hearing = False  # just now

    @property
    def pid(self) -> int:
        """Its process number; before it is forked, the server's."""
        self._hear(0.0)
        return self.forked_pid or self.server.pid

    def signs(self) -> dict[str, tuple[int, object]]:
        """An idle server uses no CPU, so that it counts as silent only while it is stopped."""
        pid, server = self.pid, self.server.pid
        if not self.forked_pid:
            return {SERVER: (server, liveness.cpu(server))}
        idle = "stopped" if self.server.stopped() else time.monotonic()
        return {RUN_SERVER: (pid, liveness.cpu(pid)), SERVER: (server, idle)}

    def signal(self, number: signal.Signals) -> None:
        """Ctrl-Z stops the server too; what kills the run leaves it for the next one. Called by a signal handler."""
        if not self.hearing:  # else the handler has interrupted that
            self._hear(0.0)  # that it was forked, perhaps
        groups = [self.server.pid] if number != signal.SIGKILL and self.server.own() else []
        if self.forked_pid and (self.hears or not self._has_ended(0.0)):  # else its number may be free
            groups.append(self.forked_pid)
        for group in groups:
            with suppress(ProcessLookupError):
                os.killpg(group, number)

    def loss(self) -> str:
        """How the fork server of the run ended, or the shared one before it, which takes everything along."""
        while self.hears and not self.end:
            if not self._hear(HASTE):
                return f"{RUN_SERVER} has ended"  # and the server says nothing: it was stopped
        if self.end:
            return self.end
        return f"{SERVER} {self.server.loss()}"

    def wait(self, patience: float) -> None:
        if self._pid_known(patience):
            self._has_ended(patience)

    def reap(self) -> None:
        """Let the server have the number back."""
        self.report.close()
        if self.process >= 0:
            os.close(self.process)
        self.server.release()

    def _pid_known(self, patience: float) -> bool:
        """Whether it was forked; waits for a server that is about to fork, not for one that imports."""
        self._hear(0.0)
        if not self.forked_pid and not self.server.imports():
            self._hear(patience)
        return bool(self.forked_pid)

    def _has_ended(self, patience: float) -> bool:
        poll = select.poll()
        poll.register(self.process, select.POLLIN)
        return bool(poll.poll(patience * 1000))

    def _hear(self, patience: float) -> bool:
        """Receive what the server reports, if anything comes in time; whether it did."""
        heard = False
        while self.hears and select.select([self.report], [], [], 0.0 if heard else patience)[0]:
            heard = self.hearing = True
            try:
                self._take_report()
            except (SystemExit, OSError):  # it is gone
                self.hears = False
            finally:
                self.hearing = False
        return heard

    def _take_report(self) -> None:
        match reports.read(read(self.report), SERVER):
            case Forked(pid):
                (self.process,) = handles.take(self.report, 1)
                self.forked_pid = pid
            case Ended(code):
                self.end = f"{RUN_SERVER} {describe(code)}"
            case ForkRefused(why):
                self.end = f"{SERVER} {why}"
