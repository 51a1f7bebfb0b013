"""New lines of a journal that another process writes."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import msgspec

from covey.errors import WireError
from covey.observe.journal import JournalEvent, read_line

MOST = 16 << 20  # bytes of a journal that are read, from its end on; covey's own stay below 4 MB


class JournalCursor(msgspec.Struct, frozen=True):
    """How far a journal was read; a journal that was thinned is another file."""

    file: int = 0  # its inode
    offset: int = 0

    @classmethod
    def parse(cls, text: str) -> JournalCursor:
        """As `str` writes it; the beginning where it is anything else."""
        file, _, offset = text.partition(".")
        known = file.isdecimal() and offset.isdecimal() and len(text) < 40
        return cls(int(file), int(offset)) if known else cls()

    def __str__(self) -> str:
        return f"{self.file}.{self.offset}"


def news(path: Path, since: JournalCursor, most: int = MOST) -> tuple[list[JournalEvent], JournalCursor]:
    """The events after `since`, at most the last `most` bytes of them; all if the file is another one than before."""
    with open(path, "rb", opener=_plainly) as file:
        state = os.fstat(file.fileno())
        if not stat.S_ISREG(state.st_mode):
            raise WireError(f"{path} is not a plain file")
        begin = since.offset if since.file == state.st_ino and since.offset <= state.st_size else 0
        start = max(begin, state.st_size - most)
        file.seek(start)
        data = file.read(state.st_size - start)
    first = data.find(b"\n") + 1 if start > begin else 0  # inside a line
    whole = data.rfind(b"\n") + 1
    lines = data[first:whole].split(b"\n")[:-1] if whole > first else []
    return [read_line(line, path) for line in lines], JournalCursor(state.st_ino, start + whole)


def _plainly(path: str, flags: int) -> int:
    """Open a file in a folder in which anybody may have put anything: no link is followed, no pipe is waited for."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
