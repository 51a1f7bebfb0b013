"""The stripes of one set on this host's disk: checked when they are read, and fetched by one process at a time."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from weakref import finalize

from covey.atomic_file import write
from covey.data.stripe_cache.cache_folder import LOOK, PLACE, USED, CacheFolder, lock, make_private
from covey.data.stripe_cache.stripe import Stripe
from covey.errors import PlanError

PART = ".part"  # how the name of a stripe ends that is being fetched
PATIENCE = 60.0  # seconds in which another process should have fetched a stripe
BRIEFLY = 0.5  # seconds in which it should, after one was waited for in vain
SLOW = 600.0  # seconds after that in which others are waited for only briefly
AGAIN = 30.0  # seconds before another try to store stripes, after there was no room for one
DAMAGED = (errno.ELOOP, errno.ENXIO, errno.EACCES, errno.EPERM, errno.EIO)  # faults of a file
TRIES = 100  # to open a file that others replace


class CachedSet:
    """A set that this process uses, so that nobody removes it.

    Args:
        cache: The folder of all sets.
        name: The hash of the set.
        place: Where it comes from, as a person reads it.
        say: Hears, once each, what keeps stripes from being cached.
    """

    def __init__(self, cache: CacheFolder, name: str, place: str = "", say: Callable[[str], None] = print) -> None:
        self.cache, self.folder = cache, cache.folder / name
        self._say, self._said = say, set[str]()
        self._checked: dict[str, tuple[int, ...]] = {}  # by name: the state of the file that had the right bytes
        self._no_room = -AGAIN  # when there was none
        self._close: finalize[..., CachedSet] | None = None
        self._tried = -AGAIN  # when the set could not be locked
        self._slow = -SLOW  # when another process was waited for in vain
        self._hold()
        with suppress(OSError):
            if place and not (self.folder / PLACE).exists():
                write(self.folder / PLACE, place[:1000], ours=True)

    def close(self) -> None:
        """Use it no more."""
        if self._close:
            self._close()

    def _hold(self) -> None:
        """Keep others from removing the set, if it can be locked; on a read-only disk it is used without."""
        if self._close or time.monotonic() - self._tried < AGAIN:
            return
        try:
            self._close = finalize(self, os.close, self._use())
        except OSError as error:
            self._tried = time.monotonic()
            self._tell(f"{self.folder} cannot be used ({error.strerror}): what is not there is read from its source")

    def read(self, stripe: Stripe, first: int = 0, last: int | None = None) -> bytes | None:
        """Bytes of a stripe; None if it is not there, or is not what it should be: then it is removed."""
        path = self.folder / stripe.name
        try:
            handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._failed(path, error)
            return None
        try:
            if why := self._check(stripe, handle):
                self._discard(path, why, os.fstat(handle).st_size)
                return None
            return os.pread(handle, (stripe.size if last is None else last) - first, first)
        except OSError as error:
            self._failed(path, error)
            return None
        finally:
            os.close(handle)

    def _failed(self, path: Path, error: OSError) -> None:
        """Remove a file only if the fault is its own: one of a process, such as too many open files, passes."""
        if error.errno in DAMAGED:
            self._discard(path, "is a link, or cannot be read")
        else:
            self._tell(f"{self.folder} cannot be read ({error.strerror}): stripes are read from their source")

    def _check(self, stripe: Stripe, handle: int) -> str:
        """What is wrong with a file, if anything is; one that has not changed since is not read again."""
        known = os.fstat(handle)
        state = (known.st_ino, known.st_size, known.st_mtime_ns, known.st_ctime_ns)
        if self._checked.get(stripe.name) == state:
            return ""
        if why := _wrong(known):
            return why
        if not stripe.fits(os.pread(handle, stripe.size + 1, 0)):
            return "does not contain what its name says"
        self._checked[stripe.name] = state
        return ""

    def fill(self, stripe: Stripe, fetch: Callable[[], bytes]) -> bytes:
        """The bytes of a stripe, fetched and stored unless another process does so; who comes meanwhile waits."""
        self._hold()
        with self._filling(stripe) as part:
            if (found := self.read(stripe)) is not None:
                return found
            data = fetch()
            if part is not None:
                self._store(stripe, part, data)
            return data

    def store(self, stripe: Stripe, data: bytes | memoryview) -> None:
        """Keep bytes that somebody has brought, if they are right and nobody else stores them."""
        if stripe.fits(data):
            self.fill(stripe, lambda: bytes(data))

    @contextmanager
    def _filling(self, stripe: Stripe) -> Iterator[int | None]:
        """A file for a stripe that only this process writes; None if there can be none, or another is too slow."""
        part, handle = self.folder / f"{stripe.name}{PART}", None
        try:
            handle = self._locked(part)
        except OSError as error:
            self._tell(f"{self.folder} cannot be written ({error.strerror}): stripes are read from their source")
        try:
            yield handle
        finally:
            if handle is not None:
                with suppress(OSError):
                    if _is(handle, part):  # it has not become the stripe
                        part.unlink(missing_ok=True)
                os.close(handle)

    def _locked(self, part: Path) -> int | None:
        patience = PATIENCE if time.monotonic() - self._slow > SLOW else BRIEFLY
        until = time.monotonic() + patience
        for _ in range(TRIES):
            handle = _opened(part)
            while not _lock(handle):
                if time.monotonic() > until:
                    os.close(handle)
                    self._slow = time.monotonic()
                    what = f"another process, which may be stopped, has not fetched a stripe of {self.folder}"
                    self._tell(f"{what} in {PATIENCE:g} s: such stripes are read from their source")
                    return None
                time.sleep(LOOK)
            if _is(handle, part):
                return handle
            os.close(handle)  # who had it has given it the name of the stripe, or removed it
        return None

    def _store(self, stripe: Stripe, handle: int, data: bytes) -> None:
        """Give the part its bytes and its name, if the disk has room."""
        if time.monotonic() - self._no_room < AGAIN:
            return
        try:
            os.ftruncate(handle, 0)
            if not self.cache.reserve(handle, len(data)):
                self._no_room = time.monotonic()
                self._tell(f"{self.cache.folder} has no room for more stripes: they are read from their source")
                return
            written = 0
            while written < len(data):
                written += os.pwrite(handle, memoryview(data)[written:], written)
            os.rename(self.folder / f"{stripe.name}{PART}", self.folder / stripe.name)
        except OSError as error:
            self._no_room = time.monotonic()
            self._tell(f"{self.folder} cannot be written ({error.strerror}): stripes are read from their source")

    def _discard(self, path: Path, why: str, size: int = 0) -> None:
        """Remove a file that is not what it should be; the stripe is then fetched again."""
        self._tell(f"{path.name[:24]}… in {self.folder} {why}: it is removed, and fetched again")
        self._checked.pop(path.name, None)
        remove(path)
        if size:
            with suppress(OSError):  # the next who finds too little room counts anew
                self.cache.release(size)

    def _tell(self, line: str) -> None:
        if line not in self._said:
            self._said.add(line)
            self._say(line)

    def _use(self) -> int:
        """The lock of the set, which is shared by all that use it."""
        used = self.folder / USED
        for _ in range(TRIES):
            if self.folder.is_symlink():
                self.folder.unlink(missing_ok=True)
            with suppress(FileNotFoundError):  # it was removed meanwhile
                make_private(self.folder)
                handle = _opened(used)
                try:
                    lock(handle, fcntl.LOCK_SH)
                    if _is(handle, used):
                        os.utime(handle)
                        return handle
                except OSError:
                    os.close(handle)
                    raise
                os.close(handle)
        raise PlanError(f"{self.folder} is removed again and again: name another folder for the cache")


def _wrong(known: os.stat_result) -> str:
    """What keeps a file from being a stripe, if anything does."""
    if not stat.S_ISREG(known.st_mode) or known.st_nlink != 1:
        return "is not a plain file of its own"
    return "" if known.st_uid == os.geteuid() else "belongs to another user"


def _opened(path: Path) -> int:
    """A file of this user, new if need be; anything else in its place is removed."""
    for _ in range(TRIES):
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
        except OSError:
            if not os.path.lexists(path) or stat.S_ISREG(path.lstat().st_mode):
                raise
            remove(path)  # a link, a folder, a socket
            continue
        known = os.fstat(handle)
        if not _wrong(known):
            return handle
        os.close(handle)
        if known.st_nlink:  # else others have just replaced it
            remove(path)
    raise OSError(errno.EBUSY, f"{path} is replaced again and again")


def remove(path: Path) -> None:
    """Remove whatever has this name."""
    try:
        path.unlink(missing_ok=True)
    except OSError:
        shutil.rmtree(path, ignore_errors=True)


def _lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is(handle: int, path: Path) -> bool:
    """Whether an open file is still the one with this name."""
    try:
        return os.path.samestat(os.fstat(handle), path.lstat())
    except FileNotFoundError:
        return False
