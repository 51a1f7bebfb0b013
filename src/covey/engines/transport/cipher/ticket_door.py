"""The open port of a role with `--cipher`: whoever comes has a few seconds to show a ticket of this run."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Collection

import zmq

from covey.engines.transport.cipher.records import HELLO
from covey.engines.transport.keys import AT_ONCE, HANDSHAKE, STRANGERS
from covey.engines.transport.refusals import Refusals
from covey.errors import WireError

NO_TICKET = "a connection for tensors: it showed no ticket of this run"
TOO_MANY = "a connection for tensors: too many have shown no ticket yet"


class Unknown:
    """A connection that has not shown its ticket yet."""

    def __init__(self, line: socket.socket) -> None:
        self.line, self.said, self.until = line, b"", time.monotonic() + HANDSHAKE / 1000


class TicketDoor:
    """Accepts connections, reads a ticket and a first answer from each, and refuses what `admit` does not take."""

    def __init__(
        self, host: str, members: int, poller: zmq.Poller, refusals: Refusals,
        admit: Callable[[socket.socket, bytes], bool],
    ) -> None:  # fmt: skip
        """`admit` takes a connection; it returns False, or raises WireError, if it does not."""
        self.most, self.poller, self.refusals, self.admit = 2 * members + STRANGERS, poller, refusals, admit
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.door = socket.create_server((host, 0), family=family, backlog=self.most)
        self.door.setblocking(False)
        self.port: int = self.door.getsockname()[1]
        poller.register(self.door.fileno(), zmq.POLLIN)
        self.waiting: dict[int, Unknown] = {}

    def answer(self, ready: Collection[object]) -> None:
        """Hear who came and what they say; never waits."""
        for handle in [handle for handle in self.waiting if handle in ready]:
            self._hear(handle)
        if self.door.fileno() in ready:
            self._accept()
        now = time.monotonic()
        for handle in [handle for handle, unknown in self.waiting.items() if unknown.until <= now]:
            self._refuse(handle, NO_TICKET)

    def due(self) -> float | None:
        """When the next connection will have had its time."""
        return next((unknown.until for unknown in self.waiting.values()), None)

    def close(self) -> None:
        for handle in list(self.waiting):
            self._forget(handle).close()
        self.poller.unregister(self.door.fileno())
        self.door.close()

    def _accept(self) -> None:
        for _ in range(AT_ONCE):
            try:
                line, _ = self.door.accept()
            except OSError:  # no more of them, or no more files
                return
            line.setblocking(False)
            self.waiting[line.fileno()] = Unknown(line)
            self.poller.register(line.fileno(), zmq.POLLIN)
            if len(self.waiting) > self.most:
                self._refuse(line.fileno(), TOO_MANY)

    def _hear(self, handle: int) -> None:
        unknown = self.waiting[handle]
        try:
            data = unknown.line.recv(HELLO - len(unknown.said))
        except OSError:
            data = b""
        unknown.said += data
        if not data:
            self._refuse(handle, NO_TICKET)
        elif len(unknown.said) == HELLO:
            try:
                if self.admit(self._forget(handle), unknown.said):
                    return
            except WireError:
                pass
            unknown.line.close()
            self.refusals.note(NO_TICKET)

    def _refuse(self, handle: int, why: str) -> None:
        self._forget(handle).close()
        self.refusals.note(why)

    def _forget(self, handle: int) -> socket.socket:
        self.poller.unregister(handle)
        return self.waiting.pop(handle).line
