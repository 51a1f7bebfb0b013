"""How much may a client send before it has asked anything? Heads, trailers and chunk extensions are bounded."""

from __future__ import annotations

from uvicorn.protocols.http.auto import AutoHTTPProtocol

HTTPTOOLS = hasattr(AutoHTTPProtocol, "on_body")  # or h11, which has a limit of its own
MOST = 1 << 16  # bytes that are neither a body nor the end of a head; what is read at once may come on top
REFUSED = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class LimitedConnection(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """A connection of a client, closed when a request's head does not end; httptools keeps any number of bytes."""

    unfinished = 0  # bytes since a head, a piece of a body or a request was complete

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self.unfinished += len(data)
        super().data_received(data)
        if HTTPTOOLS and self.unfinished > MOST and not self.transport.is_closing():
            if self.cycle is None or self.cycle.response_complete:
                self.transport.write(REFUSED)
                self.transport.close()
            else:
                self.transport.abort()

    def on_headers_complete(self) -> None:
        self.unfinished = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self.unfinished = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self.unfinished = 0
        super().on_message_complete()
