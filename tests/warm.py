"""Commands without the seconds that importing torch takes: a process that has imported covey forks one child for each.

A child is what `python -m covey …` or `python script.py` would be: its own session, folder, environment and files for
output, and its own end. The parent imports and runs nothing else, so a fork of it has no threads that could be missing.
A child begins by forking the fork server that its runs will need, so that this need not import torch either.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from code import InteractiveInterpreter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import IO, Any, NoReturn

from covey.engines.process import inherited

LONGEST = 1 << 17  # bytes of a wish: mostly environment


class Warm:
    """The process that forks, as its tests see it; it is started when it is needed."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._environment = dict(os.environ)  # of now: tests mark theirs, to find what is left of it

    def _start(self) -> None:
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        root = Path(__file__).parent.parent
        path = os.pathsep.join([str(root), *filter(None, [self._environment.get("PYTHONPATH")])])
        own = {**self._environment, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        with theirs:
            command = [sys.executable, "-m", "tests.warm", str(theirs.fileno()), " " * 64]  # room for titles
            self._process = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, cwd=root,
                env=inherited.in_order({os.fsencode(name): os.fsencode(value) for name, value in own.items()}),
            )  # fmt: skip

    def start(
        self,
        words: Sequence[str | Path],
        cwd: Path,
        env: Mapping[str, str] | None = None,
        stdin: bool = False,
        output: Sequence[int] = (),
    ) -> Command:
        """`-m MODULE …`, `SCRIPT …` or `-`, as after `python`; with `stdin` it can be written to.

        It writes into memory that `communicate` reads, or to the files `output`.
        """
        if self._process is None:
            self._start()
        asked = {"words": list(map(str, words)), "cwd": str(cwd), "env": dict(os.environ if env is None else env)}
        heard, told = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        theirs, ours = os.pipe() if stdin else (os.open(os.devnull, os.O_RDONLY), None)
        files = list(map(os.dup, output)) or [os.memfd_create(name) for name in ("out", "err")]
        with told:
            socket.send_fds(self._line, [json.dumps(asked).encode()], [told.fileno(), theirs, *files])
        os.close(theirs)
        return Command(asked["words"], heard, None if ours is None else open(ours, "w"), files)

    def run(
        self, words: Sequence[str | Path], cwd: Path, timeout: float = 240, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """The same to its end; what it left running when the time was over is killed."""
        command = self.start(words, cwd, env)
        try:
            out, err = command.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(command.pid, signal.SIGKILL)
            raise
        return subprocess.CompletedProcess(command.args, command.wait(), out, err)

    def close(self) -> None:
        if self._process is not None:
            self._line.shutdown(socket.SHUT_RDWR)  # also where a child of this process holds a copy of it
            self._line.close()
            self._process.wait(60)


OF_SESSION: list[Warm] = []  # that of the tests, for what is no fixture


class Command:
    """A command, as its tests see it: what they ask of a `subprocess.Popen`."""

    def __init__(self, args: Sequence[str], line: socket.socket, stdin: IO[str] | None, files: list[int]) -> None:
        self.args, self.stdin, self.returncode = args, stdin, None
        self._line, self._files = line, files
        self.pid = self._hear()

    def _hear(self) -> Any:
        word = self._line.recv(100)
        assert word, "the warm process has ended"
        return int(word)

    def poll(self) -> int | None:
        """Its exit status as `subprocess` has it, if it has ended."""
        if self.returncode is None and select.select([self._line], [], [], 0)[0]:
            self.returncode = self._hear()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            select.select([self._line], [], [], timeout)
        if (code := self.poll()) is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return code

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """What it has written, when it has ended."""
        if self.stdin:
            self.stdin.close()
        self.wait(timeout)
        return self.written()

    def first_line(self, seconds: float = 90) -> str:
        """What it writes first, as soon as it has."""
        until = time.monotonic() + seconds
        while "\n" not in (out := self.written()[0]):
            assert self.poll() is None and time.monotonic() < until, self.written()
            time.sleep(0.005)
        return out.partition("\n")[0]

    def written(self) -> tuple[str, str]:
        """What it has written so far."""
        out, err = (os.pread(file, os.fstat(file).st_size, 0).decode(errors="replace") for file in self._files)
        return out, err

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def __del__(self) -> None:
        for file in self._files:
            os.close(file)
        self._line.close()


def serve(line: socket.socket) -> None:
    """Fork a child for each wish, and tell its number and its end, until nobody can wish any more."""
    from numba.core.registry import cpu_target

    from covey.cli import app
    from covey.engines.process.forking.fork_server import import_all

    import_all("covey.run.roles")
    import_module("covey.exchange.kernels.cpu")
    cpu_target.target_context.refresh()  # what numba imports when it loads its first function
    assert app and len(os.listdir("/proc/self/task")) == 1, "a fork would lack the other threads"
    gc.freeze()
    loaded = inherited.early(os.environb)
    children: dict[int, tuple[int, socket.socket]] = {}  # by what is readable when they have ended
    poll = select.poll()
    poll.register(line, select.POLLIN)
    while True:
        for ready, _ in poll.poll():
            if ready != line.fileno():
                poll.unregister(ready)
                reap(ready, *children.pop(ready))
                continue
            wish, given, _, _ = socket.recv_fds(line, LONGEST, 4)
            if not wish:
                return
            told, *files = given
            child = os.fork()
            if not child:
                line.close()
                for handle, (_, other) in children.items():
                    os.close(handle)
                    other.close()
                os.close(told)
                become(json.loads(wish), files, loaded)
            for file in files:
                os.close(file)
            handle = os.pidfd_open(child)
            children[handle] = child, socket.socket(fileno=told)
            children[handle][1].send(str(child).encode())
            poll.register(handle, select.POLLIN)


def reap(handle: int, child: int, told: socket.socket) -> None:
    """Tell the exit status of a child that has ended, if anybody still hears."""
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.close(handle)
    with told, suppress(OSError):
        told.send(str(code).encode())


def become(asked: dict[str, Any], files: list[int], loaded: dict[bytes, bytes]) -> NoReturn:
    """(In the child) Be the command."""
    code = 1
    try:
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        stdin, out, err = files
        os.dup2(stdin, 0)
        os.close(stdin)
        os.chdir(asked["cwd"])
        given = {os.fsencode(name): os.fsencode(value) for name, value in asked["env"].items()}
        folder = os.open(".", os.O_PATH | os.O_DIRECTORY)
        inherited.Inherited(environment=given, path=sys.path[1:], umask=os.umask(0)).take(out, err, folder)
        have_fork_server(loaded)
        code = python(asked["words"])
    finally:
        leave(code)


def leave(code: int) -> NoReturn:
    """(In the child) End as Python does, but without taking torch apart, which takes long."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


class Forked:
    """A child of this process."""

    def __init__(self, pid: int) -> None:
        self.pid, self.returncode = pid, None

    def poll(self) -> int | None:
        return self.wait(os.WNOHANG)

    def wait(self, how: int = 0) -> Any:
        if self.returncode is None and (end := os.waitpid(self.pid, how))[0]:
            self.returncode = os.waitstatus_to_exitcode(end[1])
        return self.returncode

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


def have_fork_server(loaded: dict[bytes, bytes]) -> None:
    """(In the child) Fork the server that runs with one thread will use, where it would be what a new process is."""
    from covey.engines.process import child_process
    from covey.engines.process.forking import fork_server_client, shared_fork_server
    from covey.model.threads import limited_to

    environment = inherited.environment(**limited_to(1))
    if inherited.early(environment) != loaded:
        return
    launcher, (ours, theirs) = os.getpid(), socket.socketpair()
    pid = os.fork()
    if pid:
        theirs.close()
        fork_server_client.RUNNING.append(fork_server_client.SharedForkServer(Forked(pid), ours, environment))
        return
    try:
        ours.close()
        os.setpgid(0, 0)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as the server of a new process does
        guarded = child_process.Launcher(60.0, launcher, [os.pidfd_open(launcher)])
        child_process.entitle(shared_fork_server.TITLE)
        shared_fork_server.ready(theirs, guarded, 0.0).serve()
    finally:
        os._exit(0)


def python(words: list[str]) -> int:
    """What python does with these words, and its exit status."""
    module = words[1] if words[0] == "-m" else ""
    sys.argv = words[1:] if module else words
    sys.path[0] = os.getcwd() if module or words[0] == "-" else str(Path(words[0]).resolve().parent)
    try:
        if module:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        elif words[0] == "-":
            main = sys.modules["__main__"] = ModuleType("__main__")
            InteractiveInterpreter(vars(main)).runsource(sys.stdin.read(), "<stdin>", "exec")
        else:
            runpy.run_path(words[0], run_name="__main__")
    except SystemExit as leaving:
        if leaving.code is None or isinstance(leaving.code, int):
            return leaving.code or 0
        print(leaving.code, file=sys.stderr)
        return 1
    except BaseException as error:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        return -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    return 0


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
    os._exit(0)  # without taking torch apart, which takes long
