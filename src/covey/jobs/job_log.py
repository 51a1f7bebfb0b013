"""What has the head done? A log that survives it: each line is on the disk before the head does what it says."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from covey.decoding import WireFormat, file_bytes
from covey.errors import PlanError, WireError
from covey.jobs.job_command import JobRequest
from covey.jobs.job_folder import STOP, JobFolder
from covey.jobs.keeper import exit_code

NAME = "log.jsonl"
LARGEST = 1 << 28  # bytes
_START = re.compile(r"attempt-([0-9]{1,9})")

Status = Literal["submitted", "waiting", "running", "suspended", "done", "failed", "stopped", "refused"]
OVER: Sequence[Status] = ("done", "failed", "stopped", "refused")


class JobEntry(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """A job has this status from now on."""

    at: float  # seconds since 1970
    job: str
    status: Status
    attempt: Annotated[int, msgspec.Meta(ge=0, le=1 << 40)] = 0  # how often it was started
    workers: Annotated[int, msgspec.Meta(ge=0, le=1 << 30)] = 0
    why: str = ""


_entries: WireFormat[JobEntry] = WireFormat("entry of a log of jobs", JobEntry, "json", most=1 << 16)


class JobLog:
    """The log of the one head that serves the folder."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME
        self.entries, whole = read_log(self.path)
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        os.ftruncate(self._file, whole)  # what a crash has torn

    def write(self, entry: JobEntry) -> None:
        line = msgspec.json.encode(entry) + b"\n"
        before = os.fstat(self._file).st_size
        try:
            if os.write(self._file, line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
            os.fsync(self._file)
        except OSError:
            os.ftruncate(self._file, before)
            raise

    def close(self) -> None:
        os.close(self._file)


def read_log(path: Path) -> tuple[list[JobEntry], int]:
    """The entries of a log, and the bytes of its whole lines; a last line that was not written whole is omitted."""
    try:
        data = file_bytes(path, LARGEST)
    except FileNotFoundError:
        return [], 0
    whole = data.rfind(b"\n") + 1
    found = []
    for number, line in enumerate(data[:whole].splitlines(), 1):
        try:
            found.append(_entries.read(line, path))
        except WireError as error:
            raise PlanError(
                f"line {number} of {path} cannot be read: {error}; move the file away: what has ended is not run again"
            ) from None
    return found, whole


@dataclass(slots=True)
class KnownJob:
    """A job, as its request and the log have it."""

    name: str
    request: JobRequest
    status: Status = "submitted"
    attempt: int = 0
    workers: int = 0
    since: float = 0.0  # when it got this status
    started: float | None = None  # for the first time
    ended: float | None = None
    changed: float = 0.0  # when the number of its workers changed last
    why: str = ""

    def take(self, entry: JobEntry) -> None:
        """What the log says of it next."""
        if (entry.status == "running") != (self.status == "running"):
            self.since = entry.at
        self.changed = entry.at
        if entry.status == "running" and self.started is None:
            self.started = entry.at
        self.ended = entry.at if entry.status in OVER else None
        self.status, self.attempt, self.workers, self.why = entry.status, entry.attempt, entry.workers, entry.why

    @property
    def over(self) -> bool:
        return self.status in OVER


def known_jobs(folder: JobFolder, entries: Iterable[JobEntry] | None = None) -> dict[str, KnownJob]:
    """All jobs of a folder; damaged ones are left out, as nobody could run them."""
    found = {}
    for name in folder.names():
        try:
            request = folder.request(name)
        except WireError:
            continue
        if request is not None:
            found[name] = KnownJob(name, request, since=request.submitted)
    for entry in read_log(folder.path / NAME)[0] if entries is None else entries:
        if entry.job in found:
            found[entry.job].take(entry)
    for job in found.values():
        _take_unlogged_start(job, folder.path / job.name)
    return found


def _take_unlogged_start(job: KnownJob, place: Path) -> None:
    """What the files of a job say of its last start, if the log has lost that: nothing is done twice."""
    number = max((int(match[1]) for name in os.listdir(place) if (match := _START.fullmatch(name))), default=0)
    if number <= job.attempt:
        return
    code = exit_code(place, number)
    status: Status = "failed"
    if code is None or code == -9:  # it runs, or was killed: the head finds out
        status = "running"
    elif code in (130, -15):
        status = "stopped" if (place / STOP).exists() else "suspended"
    elif code == 0:
        status = "done"
    known = place / (f"attempt-{number}" if code is None else f"attempt-{number}.end")
    workers = job.request.least if status == "running" else 0
    why = f"it ended with exit code {code}" if status == "failed" else ""
    at = known.lstat().st_mtime
    job.take(JobEntry(at=at, job=job.name, status=status, attempt=number, workers=workers, why=why))
