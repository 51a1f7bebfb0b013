"""TLS at the edge: clients that shake hands are answered, and those that do not take no place for long."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

uvicorn = pytest.importorskip("uvicorn")
uvloop = pytest.importorskip("uvloop")
if not shutil.which("openssl"):
    pytest.skip("certificates are made by openssl", allow_module_level=True)

from covey.errors import PlanError  # noqa: E402
from covey.inference import tls_gate  # noqa: E402
from covey.inference.edge_connection import EdgeConnection  # noqa: E402
from covey.inference.tls_gate import TlsGate, context_of, serve_on  # noqa: E402
from tests.inference.test_edge_connection import GET, hello  # noqa: E402

LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]
Client = Callable[[int, TlsGate], Awaitable[None]]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate of 127.0.0.1, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=127.0.0.1"
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(["openssl", *words.split(), *names], check=True, capture_output=True)
    return certificate, key


def served(files: tuple[Path, Path], loops: Callable[[], asyncio.AbstractEventLoop], client: Client) -> None:
    async def both() -> None:
        config = uvicorn.Config(hello, http=EdgeConnection, log_level="critical", lifespan="off", ws="none")
        server = uvicorn.Server(config)
        gate = TlsGate(context_of(*files))
        with socket.create_server(("127.0.0.1", 0)) as listener:
            serving = asyncio.ensure_future(serve_on(listener, server, gate))
            try:
                await asyncio.wait_for(client(listener.getsockname()[1], gate), 30)
            finally:
                server.should_exit = True
                await serving

    with asyncio.Runner(loop_factory=loops) as runner:
        runner.run(both())


async def answered(port: int, files: tuple[Path, Path]) -> bool:
    trusted = ssl.create_default_context(cafile=str(files[0]))
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusted)
    for _ in range(2):
        writer.write(GET)
        assert (await reader.readuntil(b"hi")).startswith(b"HTTP/1.1 200")
    writer.close()
    return True


async def ended(reader: asyncio.StreamReader) -> bool:
    try:
        return not await asyncio.wait_for(reader.read(), 10)
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("loops", LOOPS)
def test_many_that_do_not_shake_hands_let_others_in(
    files: tuple[Path, Path], loops: Callable[[], asyncio.AbstractEventLoop], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls_gate, "HANDSHAKES", 4)

    async def client(port: int, gate: TlsGate) -> None:
        silent = []
        for _ in range(20):
            silent.append(await asyncio.open_connection("127.0.0.1", port))
            assert await answered(port, files)
            assert len(gate.unfinished) <= 4
        for reader, _ in silent[:-4]:
            assert await ended(reader)
        for _, writer in silent:
            writer.close()

    served(files, loops, client)


@pytest.mark.parametrize("loops", LOOPS)
@pytest.mark.parametrize("begun", [b"", b"\x16\x03\x01", GET])
def test_a_handshake_that_does_not_end_is_not_waited_for(
    begun: bytes, files: tuple[Path, Path], loops: Callable[[], asyncio.AbstractEventLoop],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(tls_gate, "PATIENCE", 0.3)

    async def client(port: int, gate: TlsGate) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(begun)
        await asyncio.sleep(0.1)
        assert len(gate.unfinished) == (begun != GET)
        await ended(reader)
        await asyncio.sleep(0.1)
        assert not gate.unfinished
        assert await answered(port, files)
        writer.close()

    served(files, loops, client)


def test_files_that_are_none_are_refused(files: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "none.pem").write_text("nothing")
    for pair in ((tmp_path / "none.pem", files[1]), (files[0], tmp_path / "none.pem"), (files[0], tmp_path)):
        with pytest.raises(PlanError, match="write both as PEM"):
            context_of(*pair)
