"""The fork server of a run: a process that has imported torch and run nothing, and forks the roles.

It is started with a socket and the run's private directory, reads one job from the socket, forks the roles, and
reports how each ends. When the launcher goes away, however it dies, the socket closes, and the fork server takes
everything with it: the roles, what they have started, and the directory. So it does when the launcher stands still for
longer than a process may: it was stopped, and nobody may ever let it go on.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import select
import shutil
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib import import_module

import msgspec

from covey.address import Address
from covey.decoding import WireFormat
from covey.engines.process.child_process import Launcher, entitle, forked_child, left_alone, read, write
from covey.engines.process.forking.lazy_dynamo import stand_in
from covey.engines.process.forking.uncollected import uncollected
from covey.engines.transport.handles import take
from covey.engines.transport.secretive import Secretive
from covey.engines.transport.shared import segment as shared_segment


class RoleJob(Secretive, frozen=True, kw_only=True):
    """What the fork server must know: which roles to fork, which function each runs, on what."""

    entry: str  # "module:function", called with the work, what was handed over, and the role's address
    roles: list[Address]
    work: bytes
    alone: bool = True  # all roles of the run start here, or share memory with these
    sharing: list[Address] = msgspec.field(default_factory=list)  # all that share memory; empty: those that start here
    handles: int = 0  # of that memory, which follow; the last one is of what all roles of the run have in common
    handed: bytes = b""  # a task of the launcher's memory; it came through pipes, never through a socket of covey's


class NextIncarnation(Secretive, frozen=True, kw_only=True):
    """A role whose process was lost is to be forked again, with other work."""

    who: Address
    work: bytes


class ServerWarm(msgspec.Struct, frozen=True, tag=True):
    """All that roles need is imported."""


class RolesStarted(msgspec.Struct, frozen=True, tag=True):
    """The roles have processes: these, in the order of the job."""

    pids: list[int]


class RoleStarted(msgspec.Struct, frozen=True, tag=True):
    """A role has another process."""

    who: Address
    pid: int


class RoleExit(msgspec.Struct, frozen=True, tag=True):
    """A role's process has ended."""

    who: Address
    status: int


_jobs: WireFormat[RoleJob] = WireFormat("job for a fork server", RoleJob)
_incarnations: WireFormat[NextIncarnation] = WireFormat("next incarnation of a role", NextIncarnation)
told: WireFormat[ServerWarm | RolesStarted | RoleStarted | RoleExit] = WireFormat(
    "word of a fork server", ServerWarm | RolesStarted | RoleStarted | RoleExit
)


def main(handle: int, directory: str, warm: str, launcher: Launcher) -> None:
    line = socket.socket(fileno=handle)
    entitle("covey: fork server")
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # Linux wakes the stopped ones of a dead launcher with it
    multiprocessing.current_process()._config["tempdir"] = directory  # type: ignore[attr-defined]  # goes with the run
    children: dict[int, Address] = {}
    try:
        with left_alone(line, launcher, partial(shutil.rmtree, directory, ignore_errors=True)):
            import_all(warm)
            _tell(line, ServerWarm())
            job = _jobs.read(read(line), "the launcher")
        entry = _raise_roles(line, job, children)
        _watch(line, children, launcher, partial(_fork_again, line, job, entry))
    finally:
        for pid in children:
            os.kill(pid, signal.SIGKILL)
        for pid in children:
            os.waitpid(pid, 0)
        shutil.rmtree(directory, ignore_errors=True)
    os.killpg(0, signal.SIGKILL)  # what the roles have started and left, such as processes that load data, and this one


def import_all(warm: str) -> None:
    """The point of this process: to import once, for all."""
    with uncollected():
        stand_in()
        import_module(warm)


Entry = Callable[[bytes, bytes, Address], None]
"""What a role's process runs: with the work, what was handed over, and the role's address."""


def _raise_roles(line: socket.socket, job: RoleJob, children: dict[int, Address]) -> Entry:
    module, _, function = job.entry.partition(":")
    entry: Entry = getattr(import_module(module), function)
    create_shared_memory(job, take(line, job.handles))
    gc.freeze()  # keeps the collector from touching, and so copying, the pages that all roles share
    for who in job.roles:
        children[_fork(line, job, entry, who)] = who
    _tell(line, RolesStarted(list(children)))
    return entry


def _fork_again(line: socket.socket, job: RoleJob, entry: Entry) -> tuple[int, Address] | None:
    """The next incarnation of a role, as the launcher asks for it; nothing if the launcher is gone."""
    try:
        request = _incarnations.read(read(line), "the launcher")
    except (SystemExit, OSError):
        return None
    pid = _fork(line, msgspec.structs.replace(job, work=request.work), entry, request.who)
    _tell(line, RoleStarted(request.who, pid))
    return pid, request.who


def _tell(line: socket.socket, word: ServerWarm | RolesStarted | RoleStarted | RoleExit) -> None:
    """Send this to the launcher; if it is gone, the next read finds that out."""
    with suppress(OSError):
        write(line, msgspec.msgpack.encode(word))


def create_shared_memory(job: RoleJob, memory: list[int]) -> None:
    """What the roles of this process, or those forked from it, share with each other."""
    from covey.engines.process import shared_vector  # imports torch, which a site that asks for roles need not

    if job.alone:
        shared_vector.create(memory.pop() if memory else None)
    shared_segment.create(job.sharing or job.roles, memory)


def _fork(line: socket.socket, job: RoleJob, entry: Entry, who: Address) -> int:
    def work() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the launcher, which stops all roles in order
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        entry(job.work, job.handed, who)

    return forked_child(line, f"covey: {who}", work)


def _watch(
    line: socket.socket, children: dict[int, Address], launcher: Launcher,
    fork_again: Callable[[], tuple[int, Address] | None],
) -> None:  # fmt: skip
    """Report each child's end, and fork a lost one again when asked; go when the launcher goes, or stands still."""
    handles = {os.pidfd_open(pid): pid for pid in children}
    poll = select.poll()
    poll.register(line, select.POLLIN | select.POLLHUP)
    for handle in (*handles, *launcher.handles):
        poll.register(handle, select.POLLIN)
    while not launcher.stands_still():
        for ready, _ in poll.poll(launcher.pause):
            if ready == line.fileno() and (forked := fork_again()):
                pid, children[forked[0]] = forked
                handles[handle := os.pidfd_open(pid)] = pid
                poll.register(handle, select.POLLIN)
                continue
            if ready not in handles:
                return
            poll.unregister(ready)
            pid = handles.pop(ready)
            os.close(ready)
            _, status = os.waitpid(pid, 0)
            _tell(line, RoleExit(children.pop(pid), status))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3], Launcher(float(sys.argv[4])))
