"""How many bytes of the data were read, and where they were."""

from __future__ import annotations

import fcntl
import mmap
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal
from weakref import WeakSet

ALL: WeakSet[ReadCounts] = WeakSet()  # of this process
Place = Literal["backend", "peers", "disk"]
PLACES: tuple[Place, ...] = ("backend", "peers", "disk")
NOTES: dict[Place, str] = {"backend": "backend bytes", "peers": "peer bytes", "disk": "cached bytes"}


class ReadCounts:
    """Counted by this process and those that it forks, such as a DataLoader's, together."""

    def __init__(self) -> None:
        self._counts = memoryview(mmap.mmap(-1, 8 * len(PLACES))).cast("q")  # forks share it
        self._file = os.memfd_create("covey-read-counts", os.MFD_CLOEXEC)  # only to be locked
        self._guard = os.getpid(), threading.Lock()
        ALL.add(self)

    def add(self, place: Place, size: int) -> None:
        """Count this many bytes."""
        with self._alone():
            self._counts[PLACES.index(place)] += size

    def take(self) -> dict[Place, int]:
        """What was counted since this was last asked, by whichever process."""
        with self._alone():
            found = self._counts.tolist()
            for place in range(len(PLACES)):
                self._counts[place] = 0
        return dict(zip(PLACES, found, strict=True))

    @contextmanager
    def _alone(self) -> Iterator[None]:
        if self._guard[0] != os.getpid():  # a thread of the parent may have held its lock
            self._guard = os.getpid(), threading.Lock()
        with self._guard[1]:
            fcntl.lockf(self._file, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.lockf(self._file, fcntl.LOCK_UN)

    def __reduce__(self) -> tuple[Any, ...]:
        return ReadCounts, ()

    def __del__(self) -> None:
        os.close(self._file)


def notes() -> dict[str, int]:
    """What was read since this was last asked, as a result names it; nothing where nothing was read."""
    found = [one.take() for one in list(ALL)]
    told = {name: sum(counts[place] for counts in found) for place, name in NOTES.items()}
    return told if any(told.values()) else {}
