"""A relay of TCP connections, one end of which can be reset while the other seems to be open."""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress
from types import TracebackType


class HalfOpenRelay:
    """Relays connections to a port of this machine."""

    def __init__(self, endpoint: str) -> None:
        self._target = int(endpoint.rpartition(":")[2])
        self._door = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"tcp://127.0.0.1:{self._door.getsockname()[1]}"
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._reset: list[socket.socket] = []  # clients whose servers shall not learn that they are gone
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> HalfOpenRelay:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for line in (self._door, *(line for pair in self._pairs for line in pair)):
            with suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)
            line.close()

    def reset(self) -> None:
        """Every client so far is cut off; the server sees nothing of it."""
        for client, _ in self._pairs:
            self._reset.append(client)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            with suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._door.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
                self._pairs.append((client, server))
                for source, sink in ((client, server), (server, client)):
                    threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        if source not in self._reset and sink not in self._reset:
            with suppress(OSError):
                sink.shutdown(socket.SHUT_RDWR)
