"""How is a file written whole or not at all, and where can that be done?"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedWriter
from pathlib import Path

from covey.errors import PlanError


@contextmanager
def replacing(path: Path, *, ours: bool = False) -> Iterator[Path]:
    """A file to write, which takes the place of `path` at the end of the block; an error leaves nothing behind.

    It lies beside `path`, in a new folder that only this user can enter: two runs never share one, and no link that
    somebody has put there is followed. A pipe or a device that a person has named is not replaced: what was written is
    copied into it. In a folder that is covey's own (`ours`) it is replaced like anything else.
    """
    special = not ours and path.exists() and not path.is_file()
    folder = Path(tempfile.mkdtemp(prefix=".covey-", dir=None if special else path.absolute().parent))
    new = folder / "new"
    try:
        yield new
        if special:
            with new.open("rb") as source, _opened(path) as file:
                shutil.copyfileobj(source, file)
        else:
            os.replace(new, path)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def write(path: Path, text: str, *, ours: bool = False) -> None:
    """Write the text whole or not at all."""
    with replacing(path, ours=ours) as new:
        new.write_text(text, encoding="utf-8")


def _opened(path: Path) -> BufferedWriter:
    """A pipe or a device to write to; a pipe that nobody reads any more is an error, not a wait."""
    handle = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    os.set_blocking(handle, True)
    return os.fdopen(handle, "wb")


def meant(path: Path) -> Path:
    """The file that a person means who names a link: what it leads to. Only for paths that a person has named."""
    return Path(os.path.realpath(path))


def check(path: Path, asked: str, usual: str, *, makes_folders: bool = False) -> None:
    """Refuse a place that cannot be written, before hours of training are spent on it; `asked` is how it was given."""
    try:
        if path.is_dir():
            raise PlanError(f"{asked} is a folder; name a file in it, such as {path / usual}")
        folder = meant(path).parent
        if not folder.is_dir() and not makes_folders:
            named = folder if path.is_symlink() else path.parent
            raise PlanError(f"{asked}: there is no folder {named}; make it first (mkdir -p {named})")
        while not folder.exists():
            folder = folder.parent
        if path.exists() and not path.is_file():
            os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
        else:
            os.rmdir(tempfile.mkdtemp(prefix=".covey-", dir=folder))
    except OSError as error:
        raise PlanError(f"{asked} cannot be written: {error.strerror}; choose another place") from None


def is_at(file: int, path: Path) -> bool:
    """Whether this open file is what the path leads to: not if it was removed or replaced; links are not followed."""
    try:
        return os.path.samestat(os.fstat(file), os.lstat(path))
    except (FileNotFoundError, NotADirectoryError):
        return False


def is_locked(path: Path, *, shared: bool = False) -> bool:
    """Whether a living process holds the lock of this file, or even a `shared` one; links are not followed."""
    import fcntl  # which Windows has not

    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(file, (fcntl.LOCK_EX if shared else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False
