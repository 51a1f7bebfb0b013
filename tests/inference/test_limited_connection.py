"""Clients whose headers, addresses or trailers do not end."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

uvicorn = pytest.importorskip("uvicorn")
pytest.importorskip("httptools")

from covey.inference.edge_connection import EdgeConnection  # noqa: E402
from covey.inference.limited_connection import MOST  # noqa: E402

POST = b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
LINE = b"X-A: " + b"a" * 1000 + b"\r\n"


async def reading(scope: Any, receive: Any, send: Any) -> None:
    size, more = 0, True
    while more:
        message = await receive()
        size, more = size + len(message.get("body", b"")), message.get("more_body", False)
    body = b"read %d" % size
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


def sent(first: bytes, piece: bytes, times: int) -> tuple[bytes, int]:
    """What a server answers to this, and how many bytes it has taken."""

    async def both() -> tuple[bytes, int]:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            config = uvicorn.Config(reading, http=EdgeConnection, log_level="critical", lifespan="off", ws="none")
            server = uvicorn.Server(config)
            serving = asyncio.ensure_future(server.serve(sockets=[listener]))
            while not server.started:
                await asyncio.sleep(0.01)
            reader, writer = await asyncio.open_connection(*listener.getsockname())
            answer, taken = b"", 0
            try:
                writer.write(first)
                for _ in range(times):
                    writer.write(piece)
                    await asyncio.wait_for(writer.drain(), 20)
                    await asyncio.sleep(0)
                    if writer.is_closing() or reader.at_eof():
                        break
                    taken += len(piece)
                answer = await asyncio.wait_for(reader.read(200), 20)
            except ConnectionError:
                pass
            finally:
                writer.transport.abort()
                server.should_exit = True
                await serving
            return answer, taken

    return asyncio.run(both())


@pytest.mark.parametrize(("first", "piece"), [
    (b"GET / HTTP/1.1\r\nHost: h\r\n", LINE),
    (b"GET /", b"a" * 1000),
    (POST + b"1\r\na\r\n0\r\n", LINE),
    (POST + b"1;", b"e" * 1000),
])  # fmt: skip
def test_what_does_not_end_is_cut_off(first: bytes, piece: bytes) -> None:
    answer, taken = sent(first, piece, 20 * MOST // 1000)
    assert not answer or answer.startswith(b"HTTP/1.1 431")
    assert taken < 16 * MOST, "the rest of it was taken"


def test_long_heads_and_bodies_within_the_limit_are_read() -> None:
    head = b"GET / HTTP/1.1\r\nHost: h\r\n" + LINE * 40 + b"\r\n"
    assert sent(head, b"", 0)[0].endswith(b"read 0")
    chunk = b"1000\r\n" + b" " * 4096 + b"\r\n"
    assert sent(POST, chunk * 50 + b"0\r\n\r\n", 1)[0].endswith(b"read 204800")
    length = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 204800\r\n\r\n"
    assert sent(length, b" " * 4096, 50)[0].endswith(b"read 204800"), "a body may come in small pieces"
