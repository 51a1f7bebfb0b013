"""The shared fork server: one process per command that imports torch, and forks the fork server of each run.

It runs nothing of the user's and touches no GPU, so that what a run changes is gone with the run. Whoever asks hands
over what the new process would have inherited. The server keeps the number of that process until the asker has hung
up, and tells how it ended. It leaves when its launcher has ended, or wants no more runs and the last one is over.
"""

from __future__ import annotations

import gc
import os
import select
import shutil
import signal
import socket
import sys
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import NoReturn

import msgspec

from covey.decoding import WireFormat
from covey.engines.process import liveness
from covey.engines.process.child_process import Launcher, entitle, left_alone, read, write
from covey.engines.process.inherited import Inherited
from covey.engines.transport import handles
from covey.engines.transport.secretive import Secretive

TITLE = "covey: shared fork server"
ROLES = "covey.engines.process.forking.fork_server:main"  # the fork server of a run
HANDLES = 5  # with a request: for reports, the line to the launcher, standard output and error, and the folder
LAST = 2.0  # seconds that the fork servers of runs have to clean up when the launcher has ended


class ForkRequest(Secretive, frozen=True, kw_only=True):
    """Fork the fork server of a run, or of the hosts of a lab."""

    inherited: Inherited
    directory: str  # goes with it; empty where it has none
    entry: str = ROLES  # "module:function" of what it runs
    warm: str
    stall: float
    asker: int = 0  # the process for which the roles work; 0: the launcher
    offered: bool = False  # in the first one: others will use this server too, which ends with the last of their runs


class Ready(msgspec.Struct, frozen=True, tag=True):
    """All that roles need is imported: the next fork is a matter of milliseconds."""

    took: float  # seconds


class Forked(msgspec.Struct, frozen=True, tag=True):
    """The fork server of a run lives; a handle of its process follows."""

    pid: int


class Ended(msgspec.Struct, frozen=True, tag=True):
    """It has ended, and its number stays taken."""

    code: int  # a negative one is a signal


class ForkRefused(msgspec.Struct, frozen=True, tag=True):
    """There can be none."""

    why: str


fork_requests: WireFormat[ForkRequest] = WireFormat("request for the fork server of a run", ForkRequest)
reports: WireFormat[Ready | Forked | Ended | ForkRefused] = WireFormat(
    "report of the fork server", Ready | Forked | Ended | ForkRefused
)


@dataclass(eq=False)
class Run:
    """The fork server of a run, as the shared one knows it."""

    pid: int
    process: int  # readable when it has ended
    report: socket.socket
    directory: str
    ended: bool = False
    wanted: bool = True  # its launcher has not hung up


class Server:
    """Forks one process for each request."""

    def __init__(self, line: socket.socket, launcher: Launcher, offered: bool = False) -> None:
        self.line, self.launcher, self.offered = line, launcher, offered
        self.open = True  # the launcher may ask for more
        self.runs: list[Run] = []
        self.poll = select.poll()
        self.poll.register(line, select.POLLIN)
        self.poll.register(launcher.handles[0], select.POLLIN)

    def serve(self) -> None:
        """Until the launcher has ended, or wants nothing more; without a timeout, so that idling costs nothing."""
        while self.open or self.runs:
            ready = {handle for handle, _ in self.poll.poll()}
            if self.launcher.handles[0] in ready:
                if not self.offered:
                    return self.end_all()
                self.poll.unregister(self.launcher.handles[0])  # its own roles end with it, others stay
            for run in list(self.runs):
                if run.process in ready or run.report.fileno() in ready:
                    self.look_after(run, run.process in ready)
            if self.line.fileno() in ready:
                self.read_request()
            stopped = not self.offered and any(run.ended for run in self.runs)
            if stopped and liveness.state(self.launcher.pid) in liveness.STOPPED:
                return self.end_all()  # its roles have left it, and so does this process

    def read_request(self) -> None:
        try:
            request = next_request(self.line)
        except (SystemExit, OSError):
            self.poll.unregister(self.line)
            self.open = False
            return
        self.fork(*request)

    def fork(self, request: ForkRequest, given: list[int]) -> None:
        """Fork what is asked for."""
        report, *rest = given
        told = socket.socket(fileno=report)
        try:
            pid = os.fork()
        except OSError as error:
            handles.close(rest)
            with suppress(OSError), told:
                tell(told, ForkRefused(f"cannot fork: {error.strerror}"))
            return
        if not pid:
            self.run_in_child(request, rest, told)
        with suppress(OSError):
            os.setpgid(pid, pid)  # in both processes, in any order: a signal to its group must find it
        handles.close(rest)
        run = Run(pid, os.pidfd_open(pid), told, request.directory)
        self.runs.append(run)
        self.poll.register(run.process, select.POLLIN)
        self.poll.register(told, 0)  # reports only a hang-up
        with suppress(OSError):
            tell(told, Forked(pid))
            handles.give(told, [run.process])

    def run_in_child(self, request: ForkRequest, given: list[int], report: socket.socket) -> NoReturn:
        """(In the child) Be the fork server of a run."""
        server = os.getppid()
        try:
            os.setpgid(0, 0)
            line, out, err, folder = given
            request.inherited.take(out, err, folder)
            report.close()
            self.line.close()
            for run in self.runs:
                run.report.close()
                os.close(run.process)
            guards = [*(() if self.offered else self.launcher.handles), os.pidfd_open(server)]
            module, _, function = request.entry.partition(":")
            launcher = Launcher(request.stall, request.asker or self.launcher.pid, guards)
            getattr(import_module(module), function)(line, request.directory, request.warm, launcher)
        except Exception:
            traceback.print_exc()
        finally:
            os._exit(0)  # no role was forked, or all have ended

    def look_after(self, run: Run, ended: bool) -> None:
        """Report how it ended, and reap it when its process number is no longer needed."""
        if ended:
            end = os.waitid(os.P_PIDFD, run.process, os.WEXITED | os.WNOWAIT)
            assert end is not None
            self.poll.unregister(run.process)
            run.ended = True
            with suppress(OSError):
                tell(run.report, Ended(end.si_status if end.si_code == os.CLD_EXITED else -end.si_status))
        else:
            self.poll.unregister(run.report)
            run.wanted = False
        if run.ended and not run.wanted:
            self.reap(run)

    def reap(self, run: Run) -> None:
        os.waitid(os.P_PIDFD, run.process, os.WEXITED)
        os.close(run.process)
        run.report.close()
        self.runs.remove(run)

    def end_all(self) -> None:
        """The launcher is gone: so are the runs, by themselves or not."""
        poll = select.poll()
        for run in self.runs:
            if not run.ended:
                poll.register(run.process, select.POLLIN)
                poll.poll(LAST * 1000)
                poll.unregister(run.process)
            with suppress(ProcessLookupError):
                os.killpg(run.pid, signal.SIGKILL)
            clear(run.directory)
        clear_requests(self.line)


def tell(line: socket.socket, word: Ready | Forked | Ended | ForkRefused) -> None:
    write(line, msgspec.msgpack.encode(word))


def next_request(line: socket.socket) -> tuple[ForkRequest, list[int]]:
    request = fork_requests.read(read(line), "the launcher")
    return request, handles.take(line, HANDLES)


def clear(directory: str) -> None:
    """Remove the directory of a run, if it has one."""
    if directory:
        shutil.rmtree(directory, ignore_errors=True)


def clear_requests(line: socket.socket) -> None:
    """Remove the directories of runs that will not be, because the launcher is gone."""
    with suppress(SystemExit, OSError):
        while select.select([line], [], [], 0)[0]:
            clear(next_request(line)[0].directory)


def main(handle: int, pid: int, directory: str) -> None:
    """`directory` is that of the first run, of which nothing may stay if the launcher ends before it has asked."""
    launcher = os.pidfd_open(os.getppid())
    if os.getppid() != pid:
        return clear(directory)  # it has ended already
    entitle(TITLE)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # see the fork server
    line = socket.socket(fileno=handle)
    try:
        first, given = next_request(line)
    except (SystemExit, OSError):
        return clear(directory)
    found = Launcher(first.stall, pid, [launcher])

    def leave() -> None:
        clear(first.directory)
        clear_requests(line)

    begun = time.monotonic()
    with left_alone(line, found, leave):
        from covey.engines.process.forking.fork_server import import_all

        import_all(first.warm)
    server = ready(line, found, time.monotonic() - begun, first.offered)
    server.fork(first, given)
    server.serve()


def ready(line: socket.socket, launcher: Launcher, took: float, offered: bool = False) -> Server:
    """(When everything is imported) Hold nothing that others may wait for, and notify the launcher."""
    os.chdir("/")
    null = os.open(os.devnull, os.O_WRONLY)
    for number in (1, 2):
        os.dup2(null, number)  # a reader of the launcher's output must not wait for this process, too
    os.close(null)
    gc.freeze()
    with suppress(OSError):
        tell(line, Ready(took))
    return Server(line, launcher, offered)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
    os._exit(0)
