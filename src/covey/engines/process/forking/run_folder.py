"""The private folder of a run, with its sockets; locked while its process lives, so that others see whether it does.

The fork server removes it, however the launcher died. Only where all processes are killed at once (a container that is
stopped, a job that is cancelled) nobody is left to do so: then the next run of the same user does.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
from contextlib import suppress
from io import FileIO
from pathlib import Path

NAME = re.compile(r"covey-[0-9a-f]{8}")
LOCK, LOCKING = ".lock", ".locking"


def make(folder: Path) -> FileIO:
    """Make a folder that only this user can enter; its lock is held as long as this file is open."""
    folder.mkdir(mode=0o700)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    lock = FileIO(os.open(folder / LOCKING, flags, 0o600), "w")
    with suppress(OSError):  # a file system without locks: nobody else removes the folder
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.rename(folder / LOCKING, folder / LOCK)  # from here on it may be swept
    return lock


def sweep(home: Path) -> None:
    """Remove what this user's runs have left in this folder whose processes are no more."""
    with suppress(OSError):
        for name in os.listdir(home):
            if NAME.fullmatch(name):
                with suppress(OSError):  # another user's, of a run that lives, or no folder of a run at all
                    _remove_unlocked(home / name)


def _remove_unlocked(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(handle).st_uid != os.geteuid():
            return
        lock = os.open(LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=handle)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(lock)
    finally:
        os.close(handle)
