"""Commands without the seconds that importing torch takes: a process that has imported covey forks one child for each.

A child is what `python -m covey …` or `python script.py` would be: its own process group, folder, environment and files
for output. The parent imports and runs nothing else, so a fork of it has no threads that could be missing. A child
begins by forking the fork server that its runs will need, so that this need not import torch either.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn


class Warm:
    """The process that forks, as its tests see it."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.warm", " " * 64]  # room for the title of a fork server
        root = Path(__file__).parent.parent
        path = os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])])
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=root,
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip

    def run(
        self, words: Sequence[str | Path], cwd: Path, timeout: float = 120, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """`-m MODULE …` or `SCRIPT …`, as after `python`; what it left running when the time was over is killed."""
        assert self._process.stdin and self._process.stdout
        with tempfile.TemporaryDirectory() as folder:
            asked = {
                "words": list(map(str, words)), "cwd": str(cwd), "timeout": timeout, "folder": folder,
                "env": dict(os.environ if env is None else env),
            }  # fmt: skip
            self._process.stdin.write(json.dumps(asked).encode() + b"\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
            assert answer, "the warm process has ended"
            code = json.loads(answer)
            out, err = ((Path(folder) / name).read_text(errors="replace") for name in ("out", "err"))
        if code is None:
            raise subprocess.TimeoutExpired(list(words), timeout, out, err)
        return subprocess.CompletedProcess(list(words), code, out, err)

    def close(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait(10)


def serve() -> None:
    import covey.cli
    from covey.engines.process.inherited import early
    from covey.engines.process.launcher.fork_server import import_all

    import_all("covey.run.roles")
    assert covey.cli and len(os.listdir("/proc/self/task")) == 1, "a fork would lack the other threads"
    loaded = early(os.environb)
    answers = os.dup(1)
    os.dup2(2, 1)
    for line in sys.stdin:
        asked = json.loads(line)
        child = os.fork()
        if not child:
            become(asked, loaded)
        os.write(answers, json.dumps(outcome(child, asked["timeout"])).encode() + b"\n")


def outcome(child: int, timeout: float) -> int | None:
    """The child's exit status as a shell has it, or None when it had to be killed."""

    def late(*_: Any) -> NoReturn:
        raise TimeoutError

    signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, timeout)
    try:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    except TimeoutError:
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def become(asked: dict[str, Any], loaded: dict[bytes, bytes]) -> NoReturn:
    """(In the child) Be the command."""
    code = 1
    try:
        os.setsid()
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        os.chdir(asked["cwd"])
        os.environ.clear()
        os.environ.update(asked["env"])
        for number, name in ((1, "out"), (2, "err")):
            file = os.open(Path(asked["folder"]) / name, os.O_WRONLY | os.O_CREAT)
            os.dup2(file, number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        have_fork_server(loaded)
        code = python(asked["words"])
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
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
    from covey.engines.process import child_process, inherited
    from covey.engines.process.launcher import fork_server_client, shared_fork_server
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
        guarded = child_process.Launcher(60.0, launcher, [os.pidfd_open(launcher)])
        child_process.entitle(shared_fork_server.TITLE)
        shared_fork_server.ready(theirs, guarded).serve()
    finally:
        os._exit(0)


def python(words: list[str]) -> int:
    """What python does with these words, and its exit status."""
    module = words[1] if words[0] == "-m" else ""
    sys.argv = words[1:] if module else words
    sys.path[0] = os.getcwd() if module else str(Path(words[0]).resolve().parent)
    try:
        if module:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(words[0], run_name="__main__")
    except SystemExit as leaving:
        if leaving.code is None or isinstance(leaving.code, int):
            return leaving.code or 0
        print(leaving.code, file=sys.stderr)
        return 1
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        return 1
    return 0


if __name__ == "__main__":
    serve()
    os._exit(0)  # without taking torch apart, which takes long
