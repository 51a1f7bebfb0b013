"""How much of what a client sends is kept? Heads, trailers, chunk extensions and requests ahead are bounded."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.auto import AutoHTTPProtocol
from uvicorn.protocols.http.flow_control import FlowControl

HTTPTOOLS = hasattr(AutoHTTPProtocol, "on_body")  # or h11, which has limits of its own
MOST = 1 << 16  # bytes that are neither a body nor the end of a head
PIECE = 512  # bytes that are parsed at once: no more requests than are in them wait to be answered
REFUSED = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class HeldFlow(FlowControl):
    """Reads nothing more from a client while bytes are there that are not parsed yet."""

    held = False

    def resume_reading(self) -> None:
        if not self.held:
            super().resume_reading()


class LimitedConnection(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """A connection of a client, closed when a request's head does not end; httptools keeps any number of bytes.

    Pipelined requests are parsed when those before them are answered: parsed, each takes fifty times its bytes.
    """

    unfinished = 0  # bytes since a head, a piece of a body or a request was complete
    rest: bytes | memoryview = b""  # that came, and is not parsed yet
    body = 0  # bytes that the body of the request has yet, where it said how many

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self.flow = HeldFlow(transport)

    def data_received(self, data: bytes) -> None:
        self.rest = memoryview(b"".join((self.rest, data)) if self.rest else data)
        self.parse()

    def parse(self) -> None:
        """Parse what came, until a request is whole that has to be answered first."""
        while self.rest and not self.transport.is_closing() and not self._is_asked():
            size = max(PIECE, self.body) if HTTPTOOLS else len(self.rest)
            piece, self.rest = self.rest[:size], self.rest[size:]
            self.unfinished += len(piece)
            super().data_received(piece)
            if HTTPTOOLS and self.unfinished > MOST and not self.transport.is_closing():
                self._refuse()
        self.flow.held = bool(self.rest)
        if self.rest:
            self.flow.pause_reading()

    def _is_asked(self) -> bool:
        """Whether a request that is whole, or one before it, has no answer yet."""
        if not HTTPTOOLS or self.cycle is None:
            return False
        return bool(self.pipeline) or not (self.cycle.response_complete or self.cycle.more_body)

    def _refuse(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.write(REFUSED)
            self.transport.close()
        else:
            self.transport.abort()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.rest:
            self.parse()
            self.flow.resume_reading()

    def on_headers_complete(self) -> None:
        self.unfinished, self.body = 0, int(dict(self.headers).get(b"content-length", 0))
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self.unfinished, self.body = 0, self.body - len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self.unfinished = 0
        super().on_message_complete()
