"""What does a head do while its disk is full? It says so once, and tries again after growing pauses."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from covey.errors import PlanError

FULL = (errno.ENOSPC, errno.EDQUOT)
ROOM = 64  # bytes that a file has from the beginning: what it is to contain later needs no more of the disk
FIRST, LONGEST = 1.0, 30.0  # seconds until the next try


def is_full(error: BaseException) -> bool:
    return isinstance(error, OSError) and error.errno in FULL


def write_in_place(path: Path, data: bytes = b"") -> None:
    """On the disk, with blanks up to `ROOM` after it: what is written here again finds room on a full disk, too."""
    # to read, too: opening a pipe to write would wait for a reader
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        if os.pwrite(file, data.ljust(ROOM), 0) < ROOM:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        os.fsync(file)
    finally:
        os.close(file)


def unless_full(told: Callable[[str], None]) -> Callable[[str], None]:
    """Lines are lost where they go into a file of a full disk."""

    def tell(line: str) -> None:
        try:
            told(line)
        except OSError as error:
            if not is_full(error):
                raise

    return tell


@contextmanager
def refused_if_full(folder: Path) -> Iterator[None]:
    """Say in one line that a folder cannot be served as its disk is full."""
    try:
        yield
    except OSError as error:
        if not is_full(error):
            raise
        raise PlanError(
            f"the disk of {folder} is full ({error.strerror}), so its jobs cannot be served: remove what is not needed "
            "there, and start covey jobs serve again"
        ) from None


class FullDisk:
    """The tries of a head to write into its folder."""

    def __init__(self, folder: Path, told: Callable[[str], None]) -> None:
        self.folder, self.told = folder, told
        self._pause, self._next = 0.0, 0.0

    @property
    def waits(self) -> bool:
        """Whether the next try is later."""
        return time.monotonic() < self._next

    @contextmanager
    def awaited(self) -> Iterator[None]:
        """Try; where the disk is full the block ends early, and is to be tried again."""
        try:
            yield
        except OSError as error:
            if not is_full(error):
                raise
            if not self._pause:
                self.told(
                    f"the disk of {self.folder} is full ({error.strerror}): jobs that run go on, no other is started, "
                    "and what ends is written down later; remove what is not needed there"
                )
            self._pause = min(LONGEST, 2 * self._pause or FIRST)
            self._next = time.monotonic() + self._pause
        else:
            if self._pause:
                self.told(f"{self.folder} has room again")
            self._pause = 0.0
