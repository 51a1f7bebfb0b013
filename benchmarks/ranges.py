"""How far do parallel ranges beat a limit of each request? A store behind a proxy with such a limit.

    python -m benchmarks.ranges [moto | files] [MB/s of a request] [ROUNDS]

The store is moto's S3 endpoint, which copies the whole object for every request, or a web server that only sends files.
Store, proxy and reader are processes of their own. In each round one request reads for a second, then 17 at once, and
then 17 through a proxy without a limit, and from the store itself: these two show what the machine allows.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median

from covey.data.storage.objects import ObjectSource
from tests.data.storage.object_store import environment, limited, s3_endpoint, upload

REQUESTS, LIMIT = 17, 3.5  # MB/s of a request
SECONDS = 2.0  # that 17 requests at the limit take


@contextmanager
def served(*words: str) -> Iterator[str]:
    """The URL that a process of this module says, while it runs."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.ranges", *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True,
    )
    assert process.stdout and process.stdin
    try:
        yield process.stdout.readline().strip()
    finally:
        process.stdin.close()  # which ends it
        process.wait()


def serve(kind: str, what: str = "", rate: str = "inf") -> None:
    """(In a process of its own) A store, or a proxy before one, until its standard input is closed."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    stores = {"moto": s3_endpoint, "files": lambda: _files(what), "proxy": lambda: _proxy(what, float(rate))}
    with stores[kind]() as url:
        print(url, flush=True)
        sys.stdin.read()


class RangeHandler(BaseHTTPRequestHandler):
    """Answers with a range of a file, which the kernel sends."""

    protocol_version = "HTTP/1.1"
    folder = Path()

    def do_GET(self) -> None:
        with (self.folder / self.path.split("/")[-1]).open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", f"bytes=0-{size - 1}"))
            assert asked is not None
            first, last = int(asked[1]), int(asked[2])
            self.send_response(206 if "Range" in self.headers else 200)
            self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
            self.send_header("Content-Length", str(last - first + 1))
            self.send_header("ETag", '"one"')
            self.end_headers()
            while self.command == "GET" and first <= last:
                first += os.sendfile(self.connection.fileno(), file.fileno(), first, last - first + 1)

    do_HEAD = do_GET

    def log_message(self, *words: object) -> None:
        pass


@contextmanager
def _files(folder: str) -> Iterator[str]:
    RangeHandler.folder = Path(folder)
    with ThreadingHTTPServer(("127.0.0.1", 0), RangeHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@contextmanager
def _proxy(endpoint: str, rate: float) -> Iterator[str]:
    with limited(endpoint, rate) as (url, _):
        yield url


def rate_of(store: str, url: str, requests: int, data: bytes, size: int) -> float:
    """MB/s of one read of the first bytes."""
    os.environ["AWS_ENDPOINT_URL"] = url
    source = ObjectSource("s3://ranges" if store == "moto" else url, requests)
    source.size("big")
    begin = time.monotonic()
    assert source.read("big", 0, size) == data[:size]
    return size / (time.monotonic() - begin) / 1e6


def measure(store: str = "moto", limit: float = LIMIT, rounds: int = 5) -> dict[str, object]:
    """Medians, ranges, and how many times as fast 17 requests are, round by round."""
    data = os.urandom(int(REQUESTS * limit * 1e6 * SECONDS))
    rates: dict[str, list[float]] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "big").write_bytes(data)
        endpoint = stack.enter_context(served(store, str(folder)))
        os.environ.update(environment(endpoint))
        if store == "moto":
            upload(folder, endpoint, "ranges")
        slow, free = (stack.enter_context(served("proxy", endpoint, str(rate))) for rate in (limit * 1e6, math.inf))
        one = int(limit * 1e6)
        cases: dict[str, Callable[[], float]] = {
            "1 request": lambda: rate_of(store, slow, 1, data, one),
            "17 requests": lambda: rate_of(store, slow, REQUESTS, data, len(data)),
            "17 requests, proxy without a limit": lambda: rate_of(store, free, REQUESTS, data, len(data)),
            "17 requests, no proxy": lambda: rate_of(store, endpoint, REQUESTS, data, len(data)),
        }
        for _ in range(rounds):
            for name, case in cases.items():
                rates.setdefault(name, []).append(case())
    gains = [many / alone for many, alone in zip(rates["17 requests"], rates["1 request"], strict=True)]
    return {
        "MB/s": {name: [round(value, 1) for value in sorted(found)] for name, found in rates.items()},
        "17 requests relative to 1": [round(gain, 1) for gain in gains], "median": round(median(gains), 1),
        "load": os.getloadavg()[0],
    }  # fmt: skip


if __name__ == "__main__":
    given = sys.argv[1:]
    if given[1:] and not given[1][0].isdigit():
        serve(*given)
    else:
        limit, rounds = float((given[1:] or [LIMIT])[0]), int((given[2:] or [5])[0])
        print(json.dumps(measure((given or ["moto"])[0], limit, rounds), indent=1))
