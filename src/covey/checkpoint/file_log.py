"""The launcher's log in the folder of its checkpoints: whoever has the lock of that folder leads."""

from __future__ import annotations

import os

import msgspec

from covey.atomic_file import replacing
from covey.checkpoint.directory import CheckpointDirectory
from covey.checkpoint.files import sync, write_synced
from covey.checkpoint.launcher_log import KEEP, LogEntry, read_entries
from covey.decoding import file_bytes
from covey.errors import CheckpointError, LeadLost, WireError

NAME = "log.jsonl"
LARGEST = 1 << 24  # bytes


class FileLog:
    """`DIR/log.jsonl`: a line for each entry, on the disk before anything relies on it."""

    folder = ""

    def __init__(self, checkpoints: CheckpointDirectory) -> None:
        self.checkpoints, self.file = checkpoints, checkpoints.directory / NAME
        self._lines = 0  # in the file; 0: not written by this launcher yet
        self._mine: tuple[int, int, int] | None = None  # what the file looked like when it was written last
        self._generation = 0

    def take(self) -> None:
        self.checkpoints.__enter__()

    def entries(self) -> list[LogEntry]:
        try:
            data = file_bytes(self.file, LARGEST)
        except FileNotFoundError:
            return []
        except WireError as error:
            raise CheckpointError(str(error)) from None
        return read_entries(data.splitlines(), self.file, "move that file away to use the checkpoints alone", torn=True)

    def write(self, entry: LogEntry) -> None:
        self._generation = entry.generation
        self.check()
        if self._lines and self.file.exists() and self._lines < 2 * KEEP:
            self._append(entry)
        else:  # also what a crash has torn
            self._rewrite([*self.entries(), entry][-KEEP:])
        self._mine = self._look()

    def _append(self, entry: LogEntry) -> None:
        handle = os.open(self.file, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
        lines, self._lines = self._lines, 0  # a disk that is full tears the line: the next one writes the file anew
        with os.fdopen(handle, "ab") as file:
            file.write(_line(entry))
            file.flush()
            os.fsync(handle)
        self._lines = lines + 1

    def _rewrite(self, entries: list[LogEntry]) -> None:
        self.checkpoints.directory.mkdir(parents=True, exist_ok=True)
        with replacing(self.file, ours=True) as new:
            write_synced(new, b"".join(map(_line, entries)))
        sync(self.checkpoints.directory)
        self._lines = len(entries)

    def check(self) -> None:
        """A newer generation can only be there where somebody has moved folders about; then this one is over."""
        if (now := self._look()) == self._mine or now is None:
            return
        try:
            newest = max((entry.generation for entry in self.entries()), default=0)
        except CheckpointError:  # nobody who leads has written that
            return
        if newest > self._generation:
            raise LeadLost(f"{self.file} is of another launcher by now, of generation {newest}: this one stops")
        self._mine = now

    def settle(self) -> None: ...

    def release(self) -> None:
        self.checkpoints.__exit__()

    def _look(self) -> tuple[int, int, int] | None:
        try:
            found = os.lstat(self.file)
        except OSError:
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns


def _line(entry: LogEntry) -> bytes:
    return msgspec.json.encode(entry) + b"\n"
