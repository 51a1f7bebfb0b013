"""A real S3 endpoint on the loopback, and a proxy before it that limits the rate of each request."""

from __future__ import annotations

import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PIECE = 1 << 14


@contextmanager
def s3_endpoint() -> Iterator[str]:
    """moto's server, in threads of this process; its URL."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield f"http://{host}:{port}"
    finally:
        server.stop()


def environment(endpoint: str) -> dict[str, str]:
    """What a person would set to read from it."""
    keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_REGION": "us-east-1"}
    return keys | {"AWS_ENDPOINT_URL": endpoint, "AWS_ALLOW_HTTP": "true", "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "false"}


def upload(folder: Path, endpoint: str, bucket: str, prefix: str = "") -> Any:
    """Put the files of a folder into a new bucket; the client that did it."""
    import boto3

    keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": "us-east-1"}
    client = boto3.client("s3", endpoint_url=endpoint, **keys)
    client.create_bucket(Bucket=bucket)
    for path in folder.rglob("*"):
        if path.is_file():
            client.put_object(Bucket=bucket, Key=f"{prefix}{path.relative_to(folder)}", Body=path.read_bytes())
    return client


class _Proxy(socketserver.ThreadingTCPServer):
    allow_reuse_address = daemon_threads = True
    request_queue_size = 128
    upstream: tuple[str, int]
    rate: float
    connections = 0


class _Handler(socketserver.BaseRequestHandler):
    server: _Proxy

    def handle(self) -> None:
        self.server.connections += 1
        with socket.create_connection(self.server.upstream) as upstream:
            threading.Thread(target=self._up, args=(upstream,), daemon=True).start()
            due = 0.0  # when the bytes so far may have passed: idle time is not made up for
            while data := upstream.recv(PIECE):
                due = max(due, time.monotonic()) + len(data) / self.server.rate
                time.sleep(max(0.0, due - time.monotonic()))
                try:
                    self.request.sendall(data)
                except OSError:
                    return

    def _up(self, upstream: socket.socket) -> None:
        try:
            while data := self.request.recv(PIECE):
                upstream.sendall(data)
            upstream.shutdown(socket.SHUT_WR)
        except OSError:
            pass


@contextmanager
def limited(endpoint: str, rate: float) -> Iterator[tuple[str, _Proxy]]:
    """A proxy that lets each connection have so many bytes per second; clients make one for each request at once."""
    host, _, port = endpoint.removeprefix("http://").partition(":")
    with _Proxy(("127.0.0.1", 0), _Handler) as proxy:
        proxy.upstream, proxy.rate = (host, int(port)), rate
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{proxy.server_address[1]}", proxy
        finally:
            proxy.shutdown()
