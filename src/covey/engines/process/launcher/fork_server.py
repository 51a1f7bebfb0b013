"""The small warm parent of a run's roles: it has imported torch and run nothing, so a role is one fork away.

It is started with a socket and the run's private directory, reads one job from the socket, forks the roles, and
reports how each ends. When the launcher goes away, however it dies, the socket closes, and the fork server takes
everything with it: the roles, what they have started, and the directory. So it does when the launcher stands still for
longer than a process may: it was stopped, and nobody may ever let it go on.
"""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import select
import shutil
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from threading import Thread

import msgspec

from covey.decoding import WireFormat
from covey.engines.process import liveness, shared_vector
from covey.engines.transport import shared_segment
from covey.engines.transport.handles import take
from covey.engines.transport.keys import Secretive
from covey.message import Address

PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15


class RoleJob(Secretive, frozen=True, kw_only=True):
    """What the fork server must know: who is born, which function each of them runs, on what."""

    entry: str  # "module:function", called with the work, what was handed over, and the role's address
    roles: list[Address]
    work: bytes
    alone: bool = True  # all roles of the run are born here, or share memory with these
    sharing: list[Address] = msgspec.field(default_factory=list)  # all that share memory; none: those born here
    handles: int = 0  # of that memory, which follow; the last one is of what all roles of the run have in common
    handed: bytes = b""  # a task of the launcher's memory; it came through pipes, never through a socket of covey's


class ServerWarm(msgspec.Struct, frozen=True, tag=True):
    """All that roles need is imported."""


class RolesStarted(msgspec.Struct, frozen=True, tag=True):
    """The roles have processes: these, in the order of the job."""

    pids: list[int]


class RoleExit(msgspec.Struct, frozen=True, tag=True):
    """A role's process has ended."""

    who: Address
    status: int


_jobs: WireFormat[RoleJob] = WireFormat("job for the parent of roles", RoleJob)
told: WireFormat[ServerWarm | RolesStarted | RoleExit] = WireFormat(
    "word of the parent of roles", ServerWarm | RolesStarted | RoleExit
)


class Launcher:
    """The process that started this one, which is a site where that is not the launcher itself."""

    def __init__(self, stall: float) -> None:
        self.pid = os.getppid()
        self.silence: liveness.Silence[int] = liveness.Silence(stall)
        self.pause = round(self.silence.every * 1000)  # milliseconds between two looks

    def stands_still(self) -> bool:
        """Whether it has used no CPU for so long that it must have been stopped."""
        return self.silence.due and bool(self.silence.look({self.pid: liveness.cpu(self.pid)}))


def main(handle: int, directory: str, warm: str, stall: float = liveness.STALL) -> None:
    line = socket.socket(fileno=handle)
    entitle("covey: fork server")
    multiprocessing.current_process()._config["tempdir"] = directory  # type: ignore[attr-defined]  # goes with the run
    children: dict[int, Address] = {}
    try:
        with _left_alone(line, directory, stall):
            _import(warm)
            _tell(line, ServerWarm())
            job = _jobs.read(read(line), "the launcher")
        _raise_roles(line, job, children)
        _watch(line, children, Launcher(stall))
    finally:
        for pid in children:
            os.kill(pid, signal.SIGKILL)
        for pid in children:
            os.waitpid(pid, 0)
        shutil.rmtree(directory, ignore_errors=True)
    os.killpg(0, signal.SIGKILL)  # what the roles have started and left, such as processes that load data, and this one


def _import(warm: str) -> None:
    """The point of this process: to import once, for all. (Each role's first optimizer would import torch._dynamo.)"""
    import torch._dynamo  # noqa: F401

    import_module(warm)


@contextmanager
def _left_alone(line: socket.socket, directory: str, stall: float) -> Iterator[None]:
    """A busy machine may need many seconds to import torch: if the launcher goes meanwhile, this process does too."""
    done, launcher = os.eventfd(0), Launcher(stall)

    def wait() -> None:
        poll = select.poll()
        poll.register(line, 0)  # tells of a hang-up only
        poll.register(done, select.POLLIN)
        while not (ready := [handle for handle, _ in poll.poll(launcher.pause)]):
            if launcher.stands_still():
                break
        if done not in ready:
            shutil.rmtree(directory, ignore_errors=True)
            os.killpg(0, signal.SIGKILL)

    watcher = Thread(target=wait, daemon=True)
    watcher.start()
    yield
    os.eventfd_write(done, 1)
    watcher.join()  # whoever forks has one thread
    os.close(done)


def _raise_roles(line: socket.socket, job: RoleJob, children: dict[int, Address]) -> None:
    module, _, function = job.entry.partition(":")
    entry = getattr(import_module(module), function)
    create_shared_memory(job, take(line, job.handles))
    gc.freeze()  # keeps the collector from touching, and so copying, the pages that all roles share
    for who in job.roles:
        children[_fork(line, job, entry, who)] = who
    _tell(line, RolesStarted(list(children)))


def _tell(line: socket.socket, word: ServerWarm | RolesStarted | RoleExit) -> None:
    """Tell the launcher; if it is gone, whoever listens next will find that out."""
    with suppress(OSError):
        write(line, msgspec.msgpack.encode(word))


def create_shared_memory(job: RoleJob, memory: list[int]) -> None:
    """What the roles of this process, or those that are born of it, share with each other."""
    if job.alone:
        shared_vector.create(memory.pop() if memory else None)
    shared_segment.create(job.sharing or job.roles, memory)


def read(line: socket.socket) -> bytes:
    """One message: eight bytes of length, then so many bytes."""
    size = int.from_bytes(_exactly(line, 8), "big")
    return _exactly(line, size)


def write(line: socket.socket, data: bytes) -> None:
    line.sendall(len(data).to_bytes(8, "big") + data)


def _exactly(line: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = line.recv(min(size - len(data), 1 << 20))
        if not part:
            raise SystemExit(0)  # the launcher is gone, or has changed its mind
        data += part
    return bytes(data)


def _fork(line: socket.socket, job: RoleJob, entry: Callable[[bytes, bytes, Address], None], who: Address) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        line.close()
        die_with_parent()
        entitle(f"covey: {who}")
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the launcher, which stops everybody in order
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        entry(job.work, job.handed, who)
        code = 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _watch(line: socket.socket, children: dict[int, Address], launcher: Launcher) -> None:
    """Report each child's end; go when the launcher goes, or stands still."""
    handles = {os.pidfd_open(pid): pid for pid in children}
    poll = select.poll()
    poll.register(line, select.POLLIN | select.POLLHUP)
    for handle in handles:
        poll.register(handle, select.POLLIN)
    while not launcher.stands_still():
        for ready, _ in poll.poll(launcher.pause):
            if ready == line.fileno():
                return
            poll.unregister(ready)
            pid = handles.pop(ready)
            os.close(ready)
            _, status = os.waitpid(pid, 0)
            _tell(line, RoleExit(children.pop(pid), status))


def die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def entitle(title: str) -> None:
    """Show the role's name in `ps` and `top`: the thread's name, and the command line where its room allows."""
    ctypes.CDLL(None).prctl(PR_SET_NAME, title.encode()[:15])
    with open("/proc/self/stat", "rb") as file:
        numbers = file.read().rpartition(b")")[2].split()
    start, stop = int(numbers[45]), int(numbers[46])  # arg_start, arg_end (proc(5), counted after the name)
    if stop - start > len(title):
        ctypes.memset(start, 0, stop - start)
        ctypes.memmove(start, title.encode(), len(title))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3], float(sys.argv[4]))
