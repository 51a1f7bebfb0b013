"""Clients that connect and are silent: each for a while, and never so many that others do not get in."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

uvicorn = pytest.importorskip("uvicorn")

from covey.inference import edge_connection  # noqa: E402
from covey.inference.edge_connection import EdgeConnection, most_connections  # noqa: E402

MOST = 4
GET = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"


async def hello(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"hi"})


def served(client: Callable[[int, Any], Awaitable[None]], app: Any = hello) -> None:
    """Run a client of a real server, with its port and its connections."""

    async def both() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            config = uvicorn.Config(
                app, http=EdgeConnection, limit_concurrency=MOST, log_level="critical", lifespan="off", ws="none"
            )
            server = uvicorn.Server(config)
            serving = asyncio.ensure_future(server.serve(sockets=[listener]))
            while not server.started:
                await asyncio.sleep(0.01)
            try:
                await asyncio.wait_for(client(listener.getsockname()[1], server.server_state.connections), 30)
            finally:
                server.should_exit = True
                await serving

    asyncio.run(both())


@pytest.mark.parametrize("before", [b"", GET])
@pytest.mark.parametrize("begun", [b"", b"GET /", b"GET / HTTP/1.1\r\nHost: h\r\n"])
def test_headers_that_do_not_come_are_not_waited_for(
    before: bytes, begun: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a byte comes now and then, and after a request that was answered."""
    monkeypatch.setattr(edge_connection, "PATIENCE", 0.4)

    async def client(port: int, connections: Any) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(before)
        if before:
            assert (await reader.readuntil(b"hi")).startswith(b"HTTP/1.1 200")
        writer.write(begun or b"\r\n")
        drip = asyncio.ensure_future(dripping(writer, b"a" if begun else b"\r\n"))
        told = await asyncio.wait_for(reader.read(), 10)
        assert told.startswith(b"HTTP/1.1 408") or (not begun and told.startswith(b"HTTP/1.1 400")), told
        drip.cancel()
        writer.close()

    async def dripping(writer: asyncio.StreamWriter, byte: bytes) -> None:
        while True:
            await asyncio.sleep(0.1)
            writer.write(byte)

    served(client)


def test_a_client_that_reads_no_answers_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """It asks and asks, so that it is never silent, and answers that it does not read fill all buffers."""
    monkeypatch.setattr(edge_connection, "PATIENCE", 0.5)

    async def client(port: int, connections: Any) -> None:
        greedy = socket.socket()
        greedy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        greedy.connect(("127.0.0.1", port))
        greedy.setblocking(False)
        until = asyncio.get_running_loop().time() + 15
        asked = 0
        while connections or not asked:
            assert asyncio.get_running_loop().time() < until, "it holds its connection"
            with suppress(BlockingIOError, ConnectionError):
                asked += greedy.send(100 * GET)
            await asyncio.sleep(0.001)
        greedy.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(GET)
        assert (await reader.readuntil(b"hi")).startswith(b"HTTP/1.1 200")
        writer.close()

    served(client)


def test_a_client_that_reads_slowly_gets_all_of_a_large_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edge_connection, "PATIENCE", 0.4)
    size = 8 << 20

    async def large(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % size)]})
        await send({"type": "http.response.body", "body": bytes(size)})

    async def client(port: int, connections: Any) -> None:
        slow = socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
        slow.connect(("127.0.0.1", port))
        slow.sendall(GET)
        slow.setblocking(False)
        loop, got, ends = asyncio.get_running_loop(), 0, 0.0
        begun = loop.time()
        while got < size:
            await asyncio.sleep(0.01)
            part = await asyncio.wait_for(loop.sock_recv(slow, 1 << 16), 5)
            assert part, f"cut off after {got} bytes"
            got += len(part)
            ends = loop.time() - begun
        assert ends > 0.8, "longer than one wait"
        slow.close()

    served(client, large)


def test_a_client_that_asks_in_time_is_answered_and_may_ask_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edge_connection, "PATIENCE", 0.5)

    async def client(port: int, connections: Any) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(3):
            for half in (GET[:9], GET[9:]):
                await asyncio.sleep(0.1)
                writer.write(half)
            assert (await reader.readuntil(b"hi")).startswith(b"HTTP/1.1 200")
        await asyncio.sleep(0.8)
        writer.write(GET)
        assert (await reader.readuntil(b"hi")).startswith(b"HTTP/1.1 200"), "the limit is that of a request that begins"
        writer.close()

    served(client)


def test_silent_clients_make_room_for_others() -> None:
    async def client(port: int, connections: Any) -> None:
        silent = []
        for _ in range(5 * MOST):
            silent.append(await asyncio.open_connection("127.0.0.1", port))
            silent[-1][1].write(b"GET / HT")
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(GET)
            assert (await reader.readuntil(b"hi")).startswith(b"HTTP/1.1 200")
            assert len(connections) <= MOST
            writer.close()
        for reader, _ in silent[:-MOST]:
            with suppress(ConnectionResetError):
                assert not await asyncio.wait_for(reader.read(), 5), "not 408, which would come later"
        for _, writer in silent:
            writer.close()

    served(client)


def test_connections_leave_files_for_replicas() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    there = len(os.listdir("/proc/self/fd"))
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(before[1], there + 300), before[1]))
        found = most_connections(4096, replicas=8)
        assert 100 < found + edge_connection.REFUSED <= 300 - 2 * 8
        assert most_connections(20, replicas=1) == 20
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
