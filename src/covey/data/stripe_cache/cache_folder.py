"""The folder of cached sets: how much room they take, and which one goes when it is short.

FOLDER/room         how many bytes all sets take; locked while that changes
FOLDER/SET/used     locked by every process that reads the set; its time is that of the last use
FOLDER/SET/place    where the set comes from, as a person reads it
FOLDER/SET/HASH     a stripe
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from covey.atomic_file import is_locked, meant
from covey.data.stripe_cache.stripe import SET
from covey.decoding import file_bytes
from covey.errors import PlanError, WireError

ROOM, USED, PLACE = "room", "used", "place"
REMOVED = ".removed-"  # how names of sets begin that are being removed
FREE = 0.05  # the share of a disk that stays free, where nobody has said how large the cache may be
LOCKED = 5.0  # seconds in which another process should have done what it locks files for
LOOK = 0.01  # seconds between two looks whether it has
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def usual_folder() -> Path:
    """Where stripes are cached: in $COVEY_DATA, or in ~/.cache/covey."""
    return Path(os.environ.get("COVEY_DATA") or "~/.cache/covey").expanduser() / "stripes"


class CachedSetFacts(NamedTuple):
    """One set of a cache, as `covey data cache` shows it."""

    name: str
    place: str
    stripes: int
    bytes: int
    used: float  # when, in seconds since 1970
    in_use: bool


class CacheFolder:
    """Sets of stripes, shared by all processes of one user.

    Args:
        folder: Where they are; it is made if need be, and only this user may write there.
        limit: At most how many bytes they take; None: a twentieth of the disk stays free.
    """

    def __init__(self, folder: Path | str | None = None, limit: int | None = None) -> None:
        self.folder, self.limit = meant(Path(folder).expanduser() if folder else usual_folder()), limit
        try:
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            make_private(self.folder)
        except OSError as error:
            raise PlanError(
                f"{self.folder} cannot be a cache: {error.strerror or error}; name another folder"
            ) from None

    def sets(self) -> list[CachedSetFacts]:
        """All sets, the least recently used first."""
        found = []
        for folder in self.folder.iterdir():
            if SET.fullmatch(folder.name) and not folder.is_symlink() and folder.is_dir():
                with suppress(OSError):  # it is just being removed
                    found.append(_facts(folder))
        return sorted(found, key=lambda one: (one.used, one.name))

    def reserve(self, handle: int, size: int) -> bool:
        """Give a file its room on the disk, for which sets go that nobody uses; False if there is too little."""
        with self._taken() as taken:
            if self._lacks(taken[0], size):
                taken[0] = sum(one.bytes for one in self.sets())  # files may have been removed by hand
            for one in self.sets() if self._lacks(taken[0], size) else ():
                if self._remove(one.name):
                    taken[0] -= one.bytes
                if not self._lacks(taken[0], size):
                    break
            if self._lacks(taken[0], size):
                return False
            try:
                os.posix_fallocate(handle, 0, size)
            except OSError as error:
                if error.errno in FULL:
                    return False
                raise
            taken[0] += size
            return True

    def release(self, size: int) -> None:
        """A file that had this room is gone."""
        with self._taken() as taken:
            taken[0] -= size

    def remove(self, name: str) -> bool:
        """Remove a set; False if a process uses it."""
        try:
            with self._taken() as taken:
                gone = self._remove(name)
                taken[0] = sum(one.bytes for one in self.sets())
                return gone
        except OSError as error:
            raise PlanError(f"{self.folder} cannot be changed: {error.strerror}") from None

    def _lacks(self, taken: int, size: int) -> bool:
        if self.limit is not None:
            return taken + size > self.limit
        disk = os.statvfs(self.folder)
        return disk.f_bavail * disk.f_frsize - size < FREE * disk.f_blocks * disk.f_frsize

    def _remove(self, name: str) -> bool:
        """Whoever opens the set meanwhile finds that it is another folder, and makes a new one."""
        folder = self.folder / name
        try:
            handle = os.open(folder / USED, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError:
            return False
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            gone = folder.rename(self.folder / f"{REMOVED}{secrets.token_hex(8)}")
        except OSError:
            return False
        finally:
            os.close(handle)
        shutil.rmtree(gone, ignore_errors=True)
        return True

    @contextmanager
    def _taken(self) -> Iterator[list[int]]:
        """How many bytes all sets take, in a list that may be changed, while nobody else changes it."""
        handle = os.open(self.folder / ROOM, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            lock(handle, fcntl.LOCK_EX)
            text = os.pread(handle, 32, 0).strip()
            taken = [int(text) if text.isdigit() else sum(one.bytes for one in self.sets())]
            for left in self.folder.glob(f"{REMOVED}*"):
                shutil.rmtree(left, ignore_errors=True)
            yield taken
            os.pwrite(handle, b"%-31d\n" % max(0, taken[0]), 0)
        finally:
            os.close(handle)


def lock(handle: int, kind: int) -> None:
    """Lock an open file; OSError if another process does not let go of it, such as one that is stopped."""
    until = time.monotonic() + LOCKED
    while True:
        try:
            return fcntl.flock(handle, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                raise OSError(
                    errno.ETIMEDOUT, f"another process, which may be stopped, has had its lock for {LOCKED:g} s"
                ) from None
        time.sleep(LOOK)


def make_private(folder: Path) -> None:
    """Make a folder that only this user can enter; PlanError if it is somebody else's, or others can write there."""
    folder.mkdir(mode=0o700, exist_ok=True)
    known = folder.lstat()
    if not stat.S_ISDIR(known.st_mode) or known.st_uid != os.geteuid() or known.st_mode & 0o022:
        raise PlanError(
            f"{folder} cannot be a cache: it must be a folder of your own into which nobody else can write; run "
            f"chmod go-w {folder}, or name another one"
        )


def _facts(folder: Path) -> CachedSetFacts:
    sizes = [entry.stat(follow_symlinks=False).st_size for entry in os.scandir(folder) if "-" in entry.name]
    used = folder / USED
    try:
        place = file_bytes(folder / PLACE, 4096).decode(errors="replace")
    except (OSError, WireError):
        place = "?"
    at = used.lstat().st_mtime if used.exists() else 0.0
    return CachedSetFacts(folder.name, place, len(sizes), sum(sizes), at, is_locked(used, shared=True))
