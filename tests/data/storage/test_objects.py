"""Shards in an object store: a real S3 endpoint on the loopback. (`gs://` was never run.)"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from copy import copy
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

import covey
from covey.data.storage.objects import ObjectSource
from covey.errors import PlanError, ShardError
from tests.data.storage.object_store import environment, limited, s3_endpoint, upload
from tests.data.storage.test_formats import X, Y, packed, trained
from tests.late_imports import needs

needs("obstore", "moto")


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with s3_endpoint() as url:
        yield url


@pytest.fixture
def s3(endpoint: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    for name, value in environment(endpoint).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("COVEY_DATA", str(tmp_path / "data"))
    return endpoint


def test_shards_in_a_bucket_are_data_of_a_task(tmp_path: Path, s3: str) -> None:
    packed(tmp_path / "set", "mds")
    upload(tmp_path / "set", s3, "task", "some/folder/")
    data = covey.data.remote("s3://task/some/folder", columns=("x", "y"))
    near = covey.data.remote(tmp_path / "set", columns=("x", "y"))
    assert len(data) == 300 and torch.equal(torch.tensor(data[123][0].tolist()), X[123]) and data[123][1] == Y[123]
    far, here = trained(data, workers=2), trained(near, workers=2)
    assert all(torch.equal(far.weights[name], here.weights[name]) for name in here.weights)
    again = covey.data.remote("s3://task/some/folder", columns=("x", "y"))
    backend = again.source.source
    assert isinstance(backend, ObjectSource)
    before = backend.received
    trained(again, workers=2)
    assert backend.received == before, "all of it is on this host's disk"


def test_a_forked_process_is_told_what_works(tmp_path: Path, s3: str) -> None:
    """It would hang: obstore's threads do not survive a fork."""
    packed(tmp_path / "set", "safetensors")
    upload(tmp_path / "set", s3, "loaders")
    data = covey.data.remote("s3://loaders", columns=("x", "y"))
    assert int(data[0][1]) == Y[0]
    child = os.fork()
    if not child:
        try:
            data.source.source.read("shard.00001.safetensors", 0, 4)
        except PlanError as error:
            os._exit(7 if "multiprocessing_context='spawn'" in str(error) else 8)
        finally:
            os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert sum(len(y) for _, y in DataLoader(data, batch_size=50)) == 300, "a batch is fetched by threads"


def test_damaged_and_changed_objects_are_named(tmp_path: Path, s3: str) -> None:
    packed(tmp_path / "set", "mds")
    client = upload(tmp_path / "set", s3, "damaged")
    source = ObjectSource("s3://damaged")
    assert source.read("shard.00001.mds", 0, 4)
    whole = (tmp_path / "set/shard.00001.mds").read_bytes()
    client.put_object(Bucket="damaged", Key="shard.00001.mds", Body=whole[:-1] + b"?")
    with pytest.raises(ShardError, match="shard 'shard.00001.mds' changed after the run began"):
        source.read("shard.00001.mds", 0, 4)
    data = covey.data.remote("s3://damaged", cache=False)
    with pytest.raises(ShardError, match="shard 'shard.00001.mds' is damaged, or changed"):
        [data[number] for number in range(300)]
    client.put_object(Bucket="damaged", Key="shard.00001.mds", Body=whole[:-500])
    with pytest.raises(ShardError, match="shard 'shard.00001.mds' ends after"):
        [number for number in range(300) if covey.data.remote("s3://damaged", cache=False)[number] is None]
    client.delete_object(Bucket="damaged", Key="shard.00001.mds")
    with pytest.raises(ShardError, match="shard 'shard.00001.mds' cannot be read"):
        copy(source).read("shard.00001.mds", 0, 4)


def test_what_is_not_there_is_refused(s3: str) -> None:
    with pytest.raises(PlanError, match="s3://nowhere cannot be listed"):
        covey.data.remote("s3://nowhere")
    with pytest.raises(PlanError, match="ftp://x: covey reads s3://, gs://"):
        covey.data.remote("ftp://x")


class Quiet(SimpleHTTPRequestHandler):
    """Serves a folder, with ranges, as web servers do."""

    def do_GET(self) -> None:
        path = Path(self.translate_path(self.path))
        if not path.is_file():
            return self.send_error(404)
        data, asked = path.read_bytes(), self.headers.get("Range")
        first, last = map(int, asked.removeprefix("bytes=").split("-")) if asked else (0, len(data) - 1)
        self.send_response(206 if asked else 200)
        if asked:
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(data)}")
        self.send_header("Content-Length", str(last + 1 - first))
        self.end_headers()
        self.wfile.write(data[first : last + 1])
        return None

    def log_message(self, *_: Any) -> None:
        pass


def test_shards_behind_a_web_server(tmp_path: Path) -> None:
    packed(tmp_path / "set", "tar")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        place = f"http://127.0.0.1:{server.server_address[1]}/set"
        assert covey.data.remote(place, columns=("y.cls",))[299][0] == Y[299]
        (tmp_path / "set/shards.json").unlink()
        with pytest.raises(PlanError, match="has no shards.json"):
            covey.data.remote(place)
        server.shutdown()


class Careless(Quiet):
    """Ignores If-Match, and gives as much as it likes."""

    tag, endless, sent = "first", False, 0

    def end_headers(self) -> None:
        self.send_header("ETag", f'"{self.tag}"')
        super().end_headers()

    def do_GET(self) -> None:
        if not Careless.endless:
            return super().do_GET()
        self.send_response(206)
        self.send_header("Content-Range", "bytes 0-3/300")
        self.send_header("Content-Length", str(1 << 28))
        self.end_headers()
        try:
            while Careless.sent < 1 << 28:
                self.wfile.write(bytes(1 << 16))
                Careless.sent += 1 << 16
        except OSError:
            pass
        return None


def test_a_server_that_ignores_what_it_is_asked_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shard").write_bytes(bytes(300))
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Careless, directory=str(tmp_path))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        source = ObjectSource(f"http://127.0.0.1:{server.server_address[1]}")
        assert source.read("shard", 0, 4) == bytes(4)
        monkeypatch.setattr(Careless, "tag", "second")
        with pytest.raises(ShardError, match="changed after the run began"):
            source.read("shard", 0, 4)
        monkeypatch.setattr(Careless, "tag", "first")
        monkeypatch.setattr(Careless, "endless", True)
        with pytest.raises(ShardError, match="gave more bytes than that; bytes 0 to 4 were asked for"):
            source.read("shard", 0, 4)
        server.shutdown()
    assert Careless.sent < 1 << 26


@pytest.mark.full
def test_seventeen_ranges_beat_a_limit_of_each_request_fourteen_times(
    tmp_path: Path, s3: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """0.35 MB/s for each request, as endpoint and proxy are Python of one process; what is compared are rates."""
    (tmp_path / "set").mkdir()
    data = torch.randint(256, (17 << 20,), dtype=torch.uint8).numpy().tobytes()
    (tmp_path / "set/big").write_bytes(data)
    upload(tmp_path / "set", s3, "ranges")
    with limited(s3, 3.5e5) as (slow, _):
        monkeypatch.setenv("AWS_ENDPOINT_URL", slow)

        def rate(requests: int | None, size: int, reads: int = 1) -> float:
            source = ObjectSource("s3://ranges", requests)
            source.size("big")
            for _ in range(reads):
                begin = time.monotonic()
                assert source.read("big", 0, size) == data[:size]
            return size / (time.monotonic() - begin)

        alone = rate(1, 1 << 20)
        assert alone < 3.6e5
        assert rate(17, len(data)) >= 14 * alone
        assert rate(None, 4 << 20, reads=5) >= 8 * alone, "1, 2, 4, 8, then 16 requests at once"


TASK = """
import covey, torch
from torch import nn

task = covey.Task(
    model=lambda: nn.Sequential(nn.Flatten(), nn.Linear(6, 7)),
    data=covey.data.remote("s3://real", columns=("x", "y")),
    optimizer=lambda params: torch.optim.SGD(params, lr=1e-4),
    loss=nn.functional.cross_entropy,
    batch_size=10,
)
"""


def test_real_processes_read_from_a_bucket(tmp_path: Path, s3: str) -> None:
    packed(tmp_path / "set", "mds")
    client = upload(tmp_path / "set", s3, "real")
    (tmp_path / "task.py").write_text(TASK)
    real = covey.fit(str(tmp_path / "task.py"), "allreduce", workers=2, epochs=2)
    here = trained(covey.data.remote(tmp_path / "set", columns=("x", "y")), workers=2)
    assert real.samples == 600
    assert all(torch.allclose(real.weights[name], here.weights[name], atol=1e-6) for name in here.weights)

    covey.data.pack((X + 1, Y), tmp_path / "other", "mds", ("x", "y"), shard_bytes=3000)
    for file in (tmp_path / "other").iterdir():
        damaged = file.read_bytes()[:-1] + b"?" if file.name == "shard.00002.mds" else file.read_bytes()
        client.put_object(Bucket="real", Key=file.name, Body=damaged)
    with pytest.raises(covey.CoveyError, match="shard 'shard.00002.mds' is damaged, or changed"):
        covey.fit(str(tmp_path / "task.py"), "allreduce", workers=2, epochs=1)
