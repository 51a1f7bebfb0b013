"""How long may a client be silent or read nothing, and how many may there be? Others still get in, as do replicas."""

from __future__ import annotations

import asyncio
import fcntl
import os
import resource
import sys
import termios
from contextlib import suppress
from itertools import count

from covey.inference.limited_connection import LimitedConnection

PATIENCE = 10.0  # seconds until the headers of a request are there
LEAST_READ = 8 << 10  # bytes of waiting answers that a client must read in as many seconds
REFUSED = 64  # connections beyond the most, which are told that there are too many
SPARE = 64  # files for everything else than connections and replicas
FEWEST = 16  # connections, however few files there may be

LATE = b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
_serial = count()


def most_connections(wanted: int, replicas: int, handshakes: int = 0) -> int:
    """So many as this process can have files for, beside those that are open now, two for each replica, and those of
    connections whose handshake is not finished."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return wanted
    there = len(os.listdir("/proc/self/fd"))
    return max(FEWEST, min(wanted, files - there - 2 * replicas - handshakes - SPARE - REFUSED))


class EdgeConnection(LimitedConnection):
    """A client's connection: closed where headers do not come, and the longest silent one where there are too many."""

    def connection_made(self, transport: asyncio.Transport) -> None:
        self.number = next(_serial)
        self._alarm: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None  # until it must have read some of its answers
        super().connection_made(transport)
        self._watch()
        most = self.limit_concurrency
        if most is None or len(self.connections) < most:
            return
        silent = [one for one in self.connections if one is not self and one.is_silent()]
        if silent or len(self.connections) > most + REFUSED:  # those in between are answered with 503
            closed = min(silent, key=lambda one: one.number, default=self)
            closed.transport.abort()
            self.connections.discard(closed)  # the loop tells it only later that it was closed

    def parse(self) -> None:
        super().parse()
        self._watch()

    def pause_writing(self) -> None:
        """Answers wait for a client that reads slowly, or not at all: such a one is not waited for."""
        self._expect_reading()
        super().pause_writing()

    def resume_writing(self) -> None:
        self._stop_expecting()
        super().resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        self._unwatch()
        self._stop_expecting()
        super().connection_lost(error)

    def _expect_reading(self) -> None:
        self._unread = self.loop.call_later(PATIENCE, self._check_reading, self._waiting())

    def _waiting(self) -> int:
        """Bytes of answers that the client's machine has not taken; the kernel takes them from here in large pieces."""
        kernel = bytearray(4)
        with suppress(OSError):
            fcntl.ioctl(self.transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, kernel)
        return int(self.transport.get_write_buffer_size()) + int.from_bytes(kernel, sys.byteorder)

    def _check_reading(self, before: int) -> None:
        if before - self._waiting() < LEAST_READ:
            self.transport.abort()
        else:
            self._expect_reading()

    def _stop_expecting(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def is_silent(self) -> bool:
        """Whether it waits for its client to ask."""
        return self.cycle is None or self.cycle.response_complete

    def _watch(self) -> None:
        """Headers that have begun to come are waited for once, not anew with each byte."""
        if not self.is_silent():
            self._unwatch()
        elif self._alarm is None:
            self._alarm = self.loop.call_later(PATIENCE, self._late)

    def _unwatch(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None

    def _late(self) -> None:
        if self.is_silent() and not self.transport.is_closing():
            self.transport.write(LATE)
            self.transport.close()
