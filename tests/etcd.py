"""A real etcd for tests, with a folder and ports of its own; they skip where it is not installed."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from covey.checkpoint.etcd_client import EtcdClient

COMMAND = shutil.which("etcd")
needs_etcd = pytest.mark.skipif(not COMMAND, reason="no etcd is installed (apt install etcd-server)")


class Etcd(EtcdClient):
    """One that runs."""

    def __init__(self, port: int, process: subprocess.Popen[bytes]) -> None:
        super().__init__("127.0.0.1", port)
        self.process = process

    def keeper(self, name: str = "digits") -> str:
        return f"etcd:127.0.0.1:{self.port}/{name}"


@contextmanager
def etcd(folder: Path) -> Iterator[Etcd]:
    assert COMMAND
    port, other = free_port(), free_port()
    urls = [f"http://127.0.0.1:{number}" for number in (port, other)]
    process = subprocess.Popen(
        [
            COMMAND, "--data-dir", str(folder), "--listen-client-urls", urls[0], "--advertise-client-urls", urls[0],
            "--listen-peer-urls", urls[1], "--initial-advertise-peer-urls", urls[1],
            "--initial-cluster", f"default={urls[1]}",
        ],
        env={**os.environ, "ETCD_UNSUPPORTED_ARCH": "arm64", "ETCD_UNSAFE_NO_FSYNC": "true"},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        found = Etcd(port, process)
        until = time.monotonic() + 60
        while True:
            try:
                found.get("anything")
                break
            except OSError:
                assert time.monotonic() < until and process.poll() is None, "etcd does not start"
                time.sleep(0.05)
        yield found
    finally:
        process.kill()
        process.wait()


def free_port() -> int:
    with closing(socket.socket()) as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
