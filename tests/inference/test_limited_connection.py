"""Clients whose headers, addresses or trailers do not end."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

uvicorn = pytest.importorskip("uvicorn")
pytest.importorskip("httptools")

from covey.inference import edge_connection  # noqa: E402
from covey.inference.edge_connection import EdgeConnection  # noqa: E402
from covey.inference.limited_connection import MOST, PIECE  # noqa: E402

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


def served(application: Any, client: Callable[[int, Any], Awaitable[Any]]) -> Any:
    """What a client of a real server finds, which is given its port and its connections."""

    async def both() -> Any:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            config = uvicorn.Config(application, http=EdgeConnection, log_level="critical", lifespan="off", ws="none")
            server = uvicorn.Server(config)
            serving = asyncio.ensure_future(server.serve(sockets=[listener]))
            while not server.started:
                await asyncio.sleep(0.01)
            try:
                return await client(listener.getsockname()[1], server.server_state.connections)
            finally:
                server.should_exit = True
                await serving

    return asyncio.run(both())


def sent(first: bytes, piece: bytes, times: int) -> tuple[bytes, int]:
    """What a server answers to this, and how many bytes it has taken."""

    async def client(port: int, connections: Any) -> tuple[bytes, int]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
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
        return answer, taken

    found: tuple[bytes, int] = served(reading, client)
    return found


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


async def slow(scope: Any, receive: Any, send: Any) -> None:
    """Answer a path with itself, a little later."""
    await receive()
    await asyncio.sleep(0.001)
    body = scope["path"].encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


async def most_queued(connections: Any, seconds: float) -> int:
    """How many requests of a connection are parsed and not answered at a time."""
    most, end = 0, asyncio.get_running_loop().time() + seconds
    while asyncio.get_running_loop().time() < end:
        most = max([most, *(len(one.pipeline) for one in connections)])
        await asyncio.sleep(0.001)
    return most


def test_requests_ahead_are_read_when_those_before_them_are_answered() -> None:
    """A client that sends thousands at once and reads nothing; parsed, each of them takes two kilobytes."""

    async def client(port: int, connections: Any) -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nHost:h\r\n\r\n" * 20_000)
        assert 0 < await most_queued(connections, 0.5) <= PIECE // 18
        (connection,) = connections
        assert connection.flow.read_paused and 0 < len(connection.rest) <= 1 << 18, "it reads no more"
        writer.transport.abort()

    served(slow, client)


@pytest.mark.parametrize("number", [5, 400])
def test_pipelined_requests_are_answered_in_order(number: int) -> None:
    """With bodies, some of which are larger than a piece, and in one go."""

    async def client(port: int, connections: Any) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        bodies = [b"x" * (700 if one % 7 == 0 else one % 3) for one in range(number)]
        writer.writelines(
            b"POST /%d HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%s" % (one, len(body), body)
            for one, body in enumerate(bodies)
        )
        for one in range(number):
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)
            body = b"/%d" % one
            assert head.startswith(b"HTTP/1.1 200") and await reader.readexactly(len(body)) == body
        writer.write(b"GET /last HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
        assert (await asyncio.wait_for(reader.read(), 20)).endswith(b"/last")
        writer.close()

    served(slow, client)


def test_a_head_that_does_not_end_after_requests_ahead_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edge_connection, "PATIENCE", 0.3)

    async def client(port: int, connections: Any) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /a HTTP/1.1\r\nHost: h\r\n\r\n" * 40 + b"GET /b HTTP/1.1\r\nX: " + b"a" * PIECE)
        told = await asyncio.wait_for(reader.read(), 4)
        assert told.count(b"/a") == 40 and b"HTTP/1.1 408" in told
        writer.close()

    served(slow, client)
