"""A queue of jobs as the page shows it: a row for each job, and who had which slot when."""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec

from covey.decoding import UNREADABLE, WireFormat, file_bytes
from covey.errors import WireError
from covey.page.rows import RunRow, changed_since, encodable

JOB, LOG, CLUSTER = "job.json", "log.jsonl", "cluster.json"  # as `covey.jobs` writes them
LARGEST = 1 << 26  # bytes of a log
MOST = 600  # times of slots that are shown, the newest
DIGITS = range(4, 10)  # of the name of a job


class SubmittedJob(msgspec.Struct, kw_only=True):
    """All that the page shows of a request."""

    words: list[str]
    submitted: float = 0.0


class LoggedStatus(msgspec.Struct, kw_only=True, frozen=True):
    """A job has this status from now on."""

    at: float
    job: str
    status: str
    workers: int = 0
    why: str = ""


class SlotTime(msgspec.Struct, kw_only=True):
    """A job has a slot from one time to another; `ended` is null as long as it has it."""

    job: str
    slot: int
    began: float
    ended: float | None = None


class QueueView(msgspec.Struct, kw_only=True):
    """Who had which slot when; and what the head was asked."""

    slots: int = 0
    policy: str = ""
    times: list[SlotTime] = []


_jobs: WireFormat[SubmittedJob] = WireFormat("submitted job", SubmittedJob, "json", most=1 << 20)
_lines: WireFormat[LoggedStatus] = WireFormat("line of a log of jobs", LoggedStatus, "json", most=1 << 16)
_clusters: WireFormat[QueueView] = WireFormat("served cluster", QueueView, "json", most=1 << 16)


class WatchedQueue:
    """The log of a folder of jobs, read again when it has changed."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.view = folder, QueueView()
        self.entries: dict[str, list[LoggedStatus]] = {}
        self._stamp: tuple[tuple[int, ...], ...] = ()

    def look(self) -> bool:
        """Read what is new; True if there is anything."""
        stamp = tuple(changed_since(self.folder / name) for name in (LOG, CLUSTER))
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        self.view = self._cluster()
        entries = self._log()
        self.view.times = slot_times(entries)[-MOST:]
        self.entries = {}
        for entry in entries:
            self.entries.setdefault(entry.job, []).append(entry)
        return True

    def _cluster(self) -> QueueView:
        try:
            return _clusters.read_file(self.folder / CLUSTER)
        except (OSError, WireError):
            return QueueView()

    def _log(self) -> list[LoggedStatus]:
        try:
            data = file_bytes(self.folder / LOG, LARGEST)
            return [_lines.read(line, LOG) for line in data[: data.rfind(b"\n") + 1].splitlines()]
        except (OSError, WireError, *UNREADABLE):
            return []


class SeenJob:
    """What was read of a job: its request, and what the log says of it."""

    def __init__(self, path: Path, queue: WatchedQueue) -> None:
        self.path, self.queue, self.serial = path, queue, 0
        self.row, self._stamp = RunRow(id=path.name, kind="job", status="submitted"), changed_since(path / JOB)
        try:
            asked = _jobs.read_file(path / JOB)
            self.row.strategy = encodable(" ".join(asked.words))[:500]
            self._submitted = asked.submitted
            self.row.began = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(asked.submitted))
        except (WireError, OSError, *UNREADABLE) as error:
            self.row.status, self.row.why, self._submitted = "unreadable", encodable(str(error)), 0.0

    def look(self) -> bool:
        """True if the row has changed."""
        entries = self.queue.entries.get(self.path.name)
        if not entries or self.row.status == "unreadable":
            return False
        before, last = msgspec.structs.replace(self.row), entries[-1]
        self.row.status, self.row.workers, self.row.why = encodable(last.status), last.workers, encodable(last.why)
        self.row.seconds = max(0.0, last.at - self._submitted)
        return self.row != before

    def is_outdated(self) -> bool:
        """Whether a request that could not be read has changed since."""
        return self.row.status == "unreadable" and self._stamp != changed_since(self.path / JOB)

    @property
    def lines(self) -> list[tuple[float, str]]:
        """What became of it, with times."""
        return [
            (entry.at, encodable(", ".join(filter(None, (entry.status, _staff(entry.workers), entry.why)))))
            for entry in self.queue.entries.get(self.path.name, [])
        ]


def job_folders(folder: Path) -> list[str]:
    """The names of the jobs in a folder, if it is that of a queue."""
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    jobs = [name for name in names if name.isascii() and name.isdigit() and len(name) in DIGITS]
    return sorted((name for name in jobs if os.path.isfile(folder / name / JOB)), key=int)


def slot_times(entries: list[LoggedStatus]) -> list[SlotTime]:
    """Who had which slot when: each job takes the lowest free ones, and gives back its last ones first."""
    having: dict[str, list[SlotTime]] = {}
    found: list[SlotTime] = []
    for entry in entries:
        mine = having.setdefault(entry.job, [])
        workers = min(entry.workers, MOST) if entry.status == "running" else 0
        while len(mine) > workers:
            mine.pop().ended = entry.at
        taken = {one.slot for those in having.values() for one in those}
        free = (slot for slot in range(len(taken) + workers) if slot not in taken)
        while len(mine) < workers:
            mine.append(SlotTime(job=encodable(entry.job), slot=next(free), began=entry.at))
            found.append(mine[-1])
        if not mine:
            del having[entry.job]
    return found


def _staff(workers: int) -> str:
    return f"{workers} worker{'' if workers == 1 else 's'}" if workers else ""
