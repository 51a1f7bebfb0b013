"""A child process that works for another: their messages, its name, and its end with the other.

Nothing heavy is imported here, so that a process can watch over its launcher before it has imported torch.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from threading import Thread
from typing import NoReturn

from covey.engines.process import liveness

PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15


class Launcher:
    """The process for which this one works: the launcher itself, or a site; by default its parent.

    `handles` are of processes without which this one has no work: readable when they have ended.
    """

    def __init__(self, stall: float, pid: int | None = None, handles: Sequence[int] = ()) -> None:
        self.pid, self.handles = pid or os.getppid(), handles
        self.silence: liveness.Silence[int] = liveness.Silence(stall)
        self.pause = round(self.silence.every * 1000)  # milliseconds between two looks

    def stands_still(self) -> bool:
        """Whether it has used no CPU for so long that it must have been stopped."""
        return self.silence.due and bool(self.silence.look({self.pid: liveness.cpu(self.pid)}))


@contextmanager
def left_alone(line: socket.socket, launcher: Launcher, leave: Callable[[], None]) -> Iterator[None]:
    """A busy machine may need many seconds to import torch: if the launcher goes meanwhile, this process does too."""
    done = os.eventfd(0)

    def wait() -> None:
        poll = select.poll()
        poll.register(line, 0)  # reports only a hang-up
        for handle in (done, *launcher.handles):
            poll.register(handle, select.POLLIN)
        while not (ready := [handle for handle, _ in poll.poll(launcher.pause)]):
            if launcher.stands_still():
                break
        if done not in ready:
            leave()
            os.killpg(0, signal.SIGKILL)

    watcher = Thread(target=wait, daemon=True)
    watcher.start()
    yield
    os.eventfd_write(done, 1)
    watcher.join()  # a process that forks must have one thread
    os.close(done)


def read(line: socket.socket) -> bytes:
    """One message: eight bytes of length, then the bytes."""
    size = int.from_bytes(_exactly(line, 8), "big")
    return _exactly(line, size)


def write(line: socket.socket, data: bytes) -> None:
    line.sendall(len(data).to_bytes(8, "big") + data)


def _exactly(line: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = b""
        with suppress(ConnectionResetError):  # it had not read all that it was told
            part = line.recv(min(size - len(data), 1 << 20))
        if not part:
            raise SystemExit(0)  # the launcher is gone, or has changed its mind
        data += part
    return bytes(data)


def die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def forked_child(line: socket.socket, title: str, work: Callable[[], None]) -> int:
    """Fork a child that does this work and ends; it dies with this process. Its process number."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        line.close()
        die_with_parent()
        entitle(title)
        work()
        code = 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
    except BaseException:
        with suppress(OSError, ValueError):
            traceback.print_exc()
    finally:
        end(code)


def end(code: int) -> NoReturn:
    """End this process at once, also where nobody reads its output any more."""
    try:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
    finally:
        os._exit(code)


def entitle(title: str) -> None:
    """Show the role's name in `ps` and `top`: the thread's name, and the command line where its room allows."""
    ctypes.CDLL(None).prctl(PR_SET_NAME, title.encode()[:15])
    with open("/proc/self/stat", "rb") as file:
        numbers = file.read().rpartition(b")")[2].split()
    start, stop = int(numbers[45]), int(numbers[46])  # arg_start, arg_end (proc(5), counted after the name)
    if stop - start > len(title):
        ctypes.memset(start, 0, stop - start)
        ctypes.memmove(start, title.encode(), len(title))
