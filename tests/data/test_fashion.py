"""Fashion-MNIST is found, or fetched and checked; nothing here leaves this machine."""

from __future__ import annotations

import gzip
import hashlib
import struct
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch

from covey.data import fashion_mnist
from covey.errors import PlanError

fashion = sys.modules["covey.data.fashion"]


class Silent(SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        pass


def idx(*shape: int) -> bytes:
    """An idx file of bytes 0, 1, 2, …"""
    size = torch.Size(shape).numel()
    return bytes((0, 0, 8, len(shape))) + struct.pack(f">{len(shape)}I", *shape) + bytes(i % 256 for i in range(size))


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder served on the loopback, which takes the place of Zalando's server; Debian's package is hidden."""
    folder = tmp_path / "served"
    folder.mkdir()
    for name in fashion.MD5:
        (folder / name).write_bytes(gzip.compress(idx(3, 28, 28) if "images" in name else idx(3), mtime=0))
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Silent, directory=str(folder))) as httpd:
        monkeypatch.setattr(fashion, "SOURCE", f"http://127.0.0.1:{httpd.server_port}/")
        monkeypatch.setattr(fashion, "DEBIAN", tmp_path / "no such package")
        monkeypatch.setattr(fashion, "MD5", {p.name: hashlib.md5(p.read_bytes()).hexdigest() for p in folder.iterdir()})
        thread = threading.Thread(target=httpd.serve_forever, args=(0.01,))
        thread.start()
        yield folder
        httpd.shutdown()
        thread.join()


def test_files_are_fetched_once_and_checked(server: Path, tmp_path: Path) -> None:
    x, y = fashion_mnist(train=True, root=tmp_path / "cache").tensors
    assert (x.shape, x.dtype, y.tolist(), y.dtype) == ((3, 1, 28, 28), torch.float32, [0, 1, 2], torch.int64)
    assert torch.equal(x[0, 0, 1, :3], torch.tensor([28, 29, 30]) / 255)
    names = ["train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"]
    assert sorted(path.name for path in (tmp_path / "cache").iterdir()) == names
    for file in server.iterdir():
        file.unlink()
    assert torch.equal(fashion_mnist(train=True, root=tmp_path / "cache").tensors[0], x)


def test_a_wrong_checksum_leaves_nothing_behind(server: Path, tmp_path: Path) -> None:
    (server / "t10k-labels-idx1-ubyte.gz").write_bytes(b"not what was published")
    with pytest.raises(PlanError, match="t10k-labels-idx1-ubyte.gz came with a wrong checksum"):
        fashion_mnist(train=False, root=tmp_path / "cache")
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["t10k-images-idx3-ubyte.gz"]


def test_without_a_network_the_error_says_which_files_go_where(server: Path, tmp_path: Path) -> None:
    (server / "train-images-idx3-ubyte.gz").unlink()
    with pytest.raises(PlanError, match="404.*apt-get install dataset-fashion-mnist, or put these files into .*/cache"):
        fashion_mnist(root=tmp_path / "cache")


def test_the_folder_comes_from_the_environment(server: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COVEY_DATA", str(tmp_path / "home"))
    fashion_mnist(train=False)
    assert len(list((tmp_path / "home" / "fashion-mnist").iterdir())) == 2


@pytest.mark.parametrize("content", [b"", b"junk", idx(5), idx(3, 28, 28)[:-1]], ids=["empty", "junk", "kind", "short"])
@pytest.mark.parametrize("packed", [True, False])
def test_a_damaged_file_is_named(content: bytes, packed: bool, tmp_path: Path) -> None:
    name = "t10k-images-idx3-ubyte" + (".gz" if packed else "")
    (tmp_path / name).write_bytes(gzip.compress(content) if packed else content)
    with pytest.raises(PlanError, match=f"{name} is damaged"):
        fashion_mnist(train=False, root=tmp_path)


def test_a_torn_gzip_file_is_named(tmp_path: Path) -> None:
    name = "t10k-images-idx3-ubyte.gz"
    (tmp_path / name).write_bytes(gzip.compress(idx(3, 28, 28))[:-20])
    with pytest.raises(PlanError, match=f"{name} is damaged"):
        fashion_mnist(train=False, root=tmp_path)


@pytest.mark.skipif(not fashion.available(), reason="no local Fashion-MNIST: apt-get install dataset-fashion-mnist")
def test_the_real_pictures() -> None:
    x, y = fashion_mnist(train=False).tensors
    assert x.shape == (10_000, 1, 28, 28)
    assert (x.min().item(), x.max().item()) == (0, 1)
    assert y.bincount().tolist() == [1000] * 10
