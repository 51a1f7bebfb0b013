"""How is a file of a checkpoint read and written? As a regular file of its owner, on the disk before it counts."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any

from covey.errors import CheckpointError

LARGEST = 1 << 28  # bytes of JSON; tensors are in other files
MODE = 0o600  # of every file: weights and data are their owner's


@contextmanager
def opened(path: Path) -> Iterator[BufferedReader]:
    """A plain file, and nothing that could lead elsewhere or wait for a writer."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise CheckpointError(f"{path} is not a regular file")
        yield file


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object that a plain file contains, if it has the size of one that covey has written."""
    with opened(path) as file:
        if (size := os.fstat(file.fileno()).st_size) > LARGEST:
            raise CheckpointError(f"{path} has {size} bytes; the limit is {LARGEST}")
        return dict(json.load(file))


def seal(path: Path) -> tuple[int, str]:
    with opened(path) as file:
        return os.fstat(file.fileno()).st_size, hashlib.file_digest(file, "sha256").hexdigest()


def seal_read(path: Path) -> tuple[int, str]:
    try:
        return seal(path)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from None


def settle(path: Path) -> None:
    """On the disk, and for nobody else."""
    with path.open("rb") as file:
        os.fchmod(file.fileno(), MODE)
        os.fsync(file.fileno())


def write_synced(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        os.fchmod(file.fileno(), MODE)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
