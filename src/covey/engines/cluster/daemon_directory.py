"""A private directory for the daemons of an embedded engine, and their end: with the run, or at covey's next start.

The daemons carry the directory's name in their environment. Whoever uses the directory holds a lock in it, which the
kernel lets go however the process ends; a directory whose lock is free belonged to a covey that was killed.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex

from covey.engines.interrupt import ENDING

MARK = "COVEY_DEN"
LONG = 24  # bytes: in a longer directory there is no room left for the names of Ray's sockets
PATIENCE = 5.0  # seconds until what was killed is gone


class DaemonDirectory:
    """Made before the daemons start, closed when they have been asked to end."""

    def __init__(self, engine: str) -> None:
        sweep(engine)
        unlocked = Path(tempfile.mkdtemp(prefix=".covey-", dir=home()))  # mode 0700
        self.lock = os.open(unlocked / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        self.path = unlocked.rename(home() / f"covey-{engine}-{token_hex(3)}")  # from here on it may be swept

    @contextmanager
    def starting(self, **environment: str) -> Iterator[None]:
        """What is started in here can be found again, and keeps its files here; signals are heard as before."""
        given = {**environment, MARK: str(self.path), "TMPDIR": str(self.path)}
        before = {name: os.environ.get(name) for name in given}
        os.environ.update(given)
        usual, tempfile.tempdir = tempfile.tempdir, str(self.path)
        try:
            with same_handlers():
                yield
        finally:
            tempfile.tempdir = usual
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value

    def close(self) -> None:
        """Nothing is left of what was started here."""
        clear(self.path)
        os.close(self.lock)


def home() -> Path:
    return Path(tempfile.gettempdir() if len(os.fsencode(tempfile.gettempdir())) <= LONG else "/tmp")


def sweep(engine: str) -> None:
    """Clear the dens of this user whose covey was killed."""
    for path in home().glob(f"covey-{engine}-*"):
        with suppress(OSError):  # another user's, or another covey sweeps as well
            if path.stat().st_uid != os.getuid():
                continue
            lock = os.open(path / "lock", os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                clear(path)
            finally:
                os.close(lock)


def clear(path: Path) -> None:
    """End every process that carries this directory's name, and remove it."""
    until = time.monotonic() + PATIENCE
    while (left := inhabitants(path)) and time.monotonic() < until:
        for pid in left:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    shutil.rmtree(path, ignore_errors=True)


def inhabitants(path: Path) -> list[int]:
    """The living processes that were started in this directory."""
    mark = f"{MARK}={path}\0".encode()
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has just ended, or belongs to another user
            if int(place.name) != os.getpid() and mark in (place / "environ").read_bytes() + b"\0":
                found.append(int(place.name))
    return found


@contextmanager
def same_handlers() -> Iterator[None]:
    """Ray and Spark install handlers of their own for signals that covey hears; put back what was there."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:  # it was not Python's
                signal.signal(number, handler)
