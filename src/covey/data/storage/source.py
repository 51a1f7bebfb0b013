"""Shards as named bytes, wherever they are."""

from __future__ import annotations

import os
import stat
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from covey.errors import PlanError, ShardError


class ShardSource(ABC):
    """Named bytes that do not change, such as the files of a folder.

    Args:
        place: The folder or URL, as a person writes it; it stands in messages.
    """

    def __init__(self, place: str) -> None:
        self.place = place

    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """All names, sorted; they may contain `/`."""

    @abstractmethod
    def size(self, name: str) -> int:
        """The number of bytes; ShardError if there is no such shard."""

    @abstractmethod
    def read(self, name: str, start: int, stop: int) -> bytes:
        """The bytes from `start` up to `stop`: all of them, or ShardError. Several threads may call it at once."""

    def whole(self, name: str, most: int | None = None) -> bytes:
        """All bytes of a shard; ShardError if they are more than `most`."""
        size = self.size(name)
        if most is not None and size > most:
            raise self.error(name, f"has {size} bytes; the limit is {most}")
        return self.read(name, 0, size)

    def error(self, name: str, why: str) -> ShardError:
        """What is wrong with a shard."""
        return ShardError(f"{self.place}: shard {name!r} {why}")


def checked_name(name: str) -> str:
    """A name that somebody else wrote; ShardError if it could lead out of the place where shards are."""
    parts = name.split("/")
    if not name or len(name) > 1024 or "\\" in name or not name.isprintable() or {"", ".", ".."} & set(parts):
        raise ShardError(f"a shard must not be called {name[:100]!r}: a name is a path below the place of the shards")
    return name


class FolderSource(ShardSource):
    """The files of a folder. Links are followed inside the folder only.

    A file is opened once, so one that is replaced stays what it was; one that is written to is refused.
    """

    def __init__(self, folder: Path | str) -> None:
        super().__init__(str(folder))
        self.folder = Path(folder).resolve()
        if not self.folder.is_dir():
            raise PlanError(
                f"there is no folder {folder}; name a folder of shards, or a URL such as s3://bucket/folder"
            )
        self._open: dict[str, tuple[int, tuple[int, int]]] = {}  # by name: the handle, its size and time of writing

    def names(self) -> tuple[str, ...]:
        found = (path for path in self.folder.rglob("*") if path.is_file())
        names = (path.relative_to(self.folder) for path in found)
        return tuple(sorted(str(name) for name in names if not any(part.startswith(".") for part in name.parts)))

    def size(self, name: str) -> int:
        return self._opened(name)[1][0]

    def read(self, name: str, start: int, stop: int) -> bytes:
        handle, known = self._opened(name)
        data = os.pread(handle, stop - start, start)
        while data and len(data) < stop - start:  # Linux reads at most 2 GiB at once
            more = os.pread(handle, stop - start - len(data), start + len(data))
            if not more:
                break
            data += more
        if _state(handle) != known:
            raise self.error(name, "changed while it was read: shards must not be written to during a run")
        if len(data) != stop - start:
            raise self.error(name, f"ends after {known[0]} bytes; bytes {start} to {stop} were asked for")
        return data

    def touched(self, name: str) -> tuple[int, int]:
        """When the file or anything about it was last changed, which nobody can put back, and how many names it has."""
        known = os.fstat(self._opened(name)[0])
        return known.st_ctime_ns, known.st_nlink

    def _opened(self, name: str) -> tuple[int, tuple[int, int]]:
        if name not in self._open:
            path = self.folder / checked_name(name)
            if not path.resolve().is_relative_to(self.folder):
                raise self.error(name, "is a link that leads out of the folder, which is not followed")
            try:
                handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            except OSError as error:
                raise self.error(name, f"cannot be read: {error.strerror}") from None
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                os.close(handle)
                raise self.error(name, "is not a plain file")
            self._open.setdefault(name, (handle, _state(handle)))
            if self._open[name][0] != handle:  # another thread was faster
                os.close(handle)
        return self._open[name]

    def __getstate__(self) -> dict[str, Any]:
        return {"place": self.place, "folder": self.folder, "_open": {}}

    def __del__(self) -> None:
        for handle, _ in getattr(self, "_open", {}).values():
            os.close(handle)


def _state(handle: int) -> tuple[int, int]:
    known = os.fstat(handle)
    return known.st_size, known.st_mtime_ns
