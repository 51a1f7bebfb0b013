"""Passing open files between processes of one machine over a socket."""

from __future__ import annotations

import os
import socket
from array import array
from collections.abc import Iterable, Sequence

MOST = 250  # in one message; Linux takes 253


def give(line: socket.socket, handles: Sequence[int]) -> None:
    """Send these; they stay open here."""
    for start in range(0, len(handles), MOST):
        socket.send_fds(line, [b"+"], handles[start : start + MOST])


def take(line: socket.socket, count: int) -> list[int]:
    """Receive this many; OSError if fewer come, and then none stays open."""
    found: list[int] = []
    try:
        while len(found) < count:
            found += _some(line)
        if len(found) > count:
            raise ConnectionError(f"{len(found)} open files came, and not {count}")
    except BaseException:
        close(found)
        raise
    return found


def close(handles: Iterable[int]) -> None:
    for handle in handles:
        os.close(handle)


def _some(line: socket.socket) -> list[int]:
    """What comes with one message. (`socket.recv_fds` of Python 3.11 ignores flags: children would have them too.)"""
    room = socket.CMSG_SPACE(MOST * array("i").itemsize)
    _, attached, flags, _ = line.recvmsg(1, room, socket.MSG_CMSG_CLOEXEC)
    found = array("i")
    for level, kind, data in attached:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            found.frombytes(data[: len(data) - len(data) % found.itemsize])
    if not found or flags & socket.MSG_CTRUNC:
        close(found)
        raise ConnectionError("open files were expected and did not all come (see ulimit -n)")
    return list(found)
