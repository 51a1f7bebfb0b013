"""TLS in front of an endpoint: handshakes that do not end are bounded, in their number and their time."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

from covey.errors import PlanError

PATIENCE = 10.0  # seconds for a handshake
HANDSHAKES = 256  # that may be unfinished at a time; of more, the oldest is closed
STARTING = 0.01  # seconds between two looks whether the server has started
PAUSE = 0.1  # seconds after which connections are taken again, where there was no file for one


class TlsGate:
    """Takes connections, and passes on those whose clients have shaken hands.

    Args:
        context: With the certificate.
    """

    def __init__(self, context: ssl.SSLContext) -> None:
        self._context = context
        self.unfinished: dict[asyncio.Task[None], None] = {}  # handshakes, in the order in which they came

    async def accept(self, listener: socket.socket, protocol: Callable[[], asyncio.Protocol]) -> None:
        """Take connections until cancelled; `protocol` makes what speaks with a client after the handshake."""
        loop = asyncio.get_running_loop()
        listener.setblocking(False)
        try:
            while True:
                try:
                    client, _ = await loop.sock_accept(listener)
                except OSError:  # such as too many open files; or the client is gone already
                    await asyncio.sleep(PAUSE)
                else:
                    self._admit(client, protocol)
        finally:
            for one in self.unfinished:
                one.cancel()

    def _admit(self, client: socket.socket, protocol: Callable[[], asyncio.Protocol]) -> None:
        task = asyncio.get_running_loop().create_task(self._shake_hands(client, protocol))
        self.unfinished[task] = None
        task.add_done_callback(lambda done: self.unfinished.pop(done, None))
        if len(self.unfinished) > HANDSHAKES:
            oldest = next(iter(self.unfinished))
            del self.unfinished[oldest]
            oldest.cancel()

    async def _shake_hands(self, client: socket.socket, protocol: Callable[[], asyncio.Protocol]) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                protocol, client, ssl=self._context, ssl_handshake_timeout=PATIENCE
            )
        except (OSError, asyncio.CancelledError):  # also what ssl raises
            client.close()


async def serve_on(listener: socket.socket, server: Any, gate: TlsGate | None) -> None:
    """Let a server of uvicorn answer on this socket, by TLS where there is a gate, until it is told to end."""
    if gate is None:
        return await server.serve(sockets=[listener])  # type: ignore[no-any-return]
    serving = asyncio.ensure_future(server.serve(sockets=[]))
    while not server.started and not serving.done():
        await asyncio.sleep(STARTING)

    def protocol() -> asyncio.Protocol:
        made = server.config.http_protocol_class
        return made(config=server.config, server_state=server.server_state, app_state=server.lifespan.state)  # type: ignore[no-any-return]

    taking = asyncio.ensure_future(gate.accept(listener, protocol))
    try:
        return await serving  # type: ignore[no-any-return]
    finally:
        taking.cancel()
        await asyncio.wait([taking])


def context_of(certificate: Path, key: Path) -> ssl.SSLContext:
    """TLS of a server with these files, which must be PEM and belong together."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, key)
    except OSError as error:  # also what ssl raises
        raise PlanError(
            f"--tls-certificate {certificate} and --tls-key {key} cannot be used ({error}): write both as PEM, the key "
            "of that certificate, without a password"
        ) from None
    return context
