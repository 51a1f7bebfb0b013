"""One end of a link that is relayed: a socket of this machine that never holds up whoever relays."""

from __future__ import annotations

import socket

import zmq

from covey.inference.sites.relay_words import CHUNK


class RelayedLink:
    """A socket, and the bytes that it has not taken yet."""

    def __init__(self, number: int, end: socket.socket) -> None:
        self.number, self.socket = number, end
        self._waiting = bytearray()
        end.setblocking(False)

    @property
    def events(self) -> int:
        """What to poll for."""
        return zmq.POLLIN | (zmq.POLLOUT if self._waiting else 0)

    def write(self, data: bytes = b"") -> bool:
        """Write this after what waits; False if nobody reads it any more."""
        self._waiting += data
        try:
            while self._waiting:
                del self._waiting[: self.socket.send(self._waiting)]
        except BlockingIOError:
            pass
        except OSError:
            return False
        return True

    def read(self) -> bytes | None:
        """What has come; none: the other end has hung up."""
        try:
            return self.socket.recv(CHUNK) or None
        except BlockingIOError:
            return b""
        except OSError:
            return None

    def close(self) -> None:
        self.socket.close()
