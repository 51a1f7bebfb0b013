"""Fashion-MNIST: 70,000 pictures of clothes, from Debian's package, a folder, or Zalando's server."""

from __future__ import annotations

import gzip
import hashlib
import os
import urllib.request
import zlib
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from covey.errors import PlanError

SOURCE = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"
DEBIAN = Path("/usr/share/datasets/fashion-mnist")
# Zalando's README. Debian's files hold the same bytes behind another gzip header (no name, another date).
MD5 = {
    "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
    "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
    "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
}


def fashion_mnist(train: bool = True, root: str | Path | None = None) -> TensorDataset:
    """Return Fashion-MNIST: x of shape (N, 1, 28, 28) in [0, 1], y the class.

    Files that are neither in `root` nor in Debian's package dataset-fashion-mnist are downloaded into `root`.

    Args:
        train: The 60,000 images to train on; if false, the 10,000 images to score.
        root: The folder of the files; without it $COVEY_DATA/fashion-mnist or ~/.cache/covey/fashion-mnist.

    >>> x, y = covey.data.fashion_mnist(train=False).tensors
    >>> x.shape, y.shape
    (torch.Size([10000, 1, 28, 28]), torch.Size([10000]))
    """
    part = "train" if train else "t10k"
    folder = _folder(root)
    x = _read(_find(f"{part}-images-idx3-ubyte.gz", folder), dimensions=3)
    y = _read(_find(f"{part}-labels-idx1-ubyte.gz", folder), dimensions=1)
    return TensorDataset(x.unsqueeze(1).float().div_(255), y.long())


def available(root: str | Path | None = None) -> bool:
    """Whether every file is on this machine, so that nothing has to be downloaded."""
    return all(any(path.exists() for path in _places(name, _folder(root))) for name in MD5)


def _folder(root: str | Path | None) -> Path:
    if root is not None:
        return Path(root).expanduser()
    return Path(os.environ.get("COVEY_DATA", "~/.cache/covey")).expanduser() / "fashion-mnist"


def _places(name: str, folder: Path) -> Iterator[Path]:
    for place in (folder, DEBIAN):
        yield place / name
        yield place / name.removesuffix(".gz")


def _find(name: str, folder: Path) -> Path:
    return next((path for path in _places(name, folder) if path.exists()), None) or _download(name, folder)


def _download(name: str, folder: Path) -> Path:
    """Fetch a file, check it, and only then give it its name."""
    try:
        with urllib.request.urlopen(SOURCE + name, timeout=30) as answer:
            content: bytes = answer.read()
    except (OSError, HTTPException) as error:
        raise PlanError(f"could not download {SOURCE}{name} ({error}); {_by_hand(folder)}") from error
    if hashlib.md5(content, usedforsecurity=False).hexdigest() != MD5[name]:
        raise PlanError(f"{SOURCE}{name} came with a wrong checksum and was not kept; try again, or {_by_hand(folder)}")
    folder.mkdir(parents=True, exist_ok=True)
    # Several workers may do this at once: each writes its own file, and the last rename wins.
    partial = folder / f"{name}.{os.getpid()}"
    partial.write_bytes(content)
    return partial.replace(folder / name)


def _by_hand(folder: Path) -> str:
    return f"apt-get install dataset-fashion-mnist, or put these files into {folder}: {', '.join(MD5)}"


def _read(path: Path, dimensions: int) -> Tensor:
    """The tensor in an idx file: 0, 0, 8 for bytes, the number of dimensions, their sizes, the bytes."""
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        if content[:4] != bytes((0, 0, 8, dimensions)):
            raise ValueError(f"no idx file of bytes in {dimensions} dimensions")
        shape = np.frombuffer(content, ">u4", count=dimensions, offset=4)
        numbers = np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions).reshape(shape)
    except (EOFError, OSError, ValueError, zlib.error) as error:
        raise PlanError(f"{path} is damaged ({error}); remove it, and it will be downloaded again") from error
    return torch.from_numpy(numbers.copy())
