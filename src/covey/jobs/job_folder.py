"""Where are the jobs of a cluster? A folder of one user, with a folder for each job and the log of the head.

DIR/.lock            held by the head that serves
DIR/log.jsonl        what the head did, one line each, on the disk before it is done
DIR/cluster.json     slots and policy of the last head
DIR/0001/job.json    what was submitted           DIR/0001/stop       somebody wants it to end
DIR/0001/kept        its checkpoints              DIR/0001/runs       its records
DIR/0001/output.txt  what it printed              DIR/0001/attempt-2  its second start: a lock, and how it ended
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from covey import atomic_file
from covey.decoding import WireFormat
from covey.errors import PlanError, WireError
from covey.jobs.job_command import SCHEMA, JobRequest, job_request
from covey.names import meant

NAME = re.compile(r"[0-9]{4,9}")
JOB, STOP, OUTPUT, LOCK, CLUSTER = "job.json", "stop", "output.txt", ".lock", "cluster.json"


class ServedCluster(msgspec.Struct, frozen=True):
    """What the last head served."""

    slots: int
    policy: str
    slice: float = 60.0


_jobs: WireFormat[JobRequest] = WireFormat("job", JobRequest, "json", most=1 << 20)
_clusters: WireFormat[ServedCluster] = WireFormat("cluster of jobs", ServedCluster, "json", most=1 << 16)


class JobFolder:
    """The folder of a queue, which only its owner may read and write."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()

    def made(self) -> JobFolder:
        """The same, on the disk, and nobody else's."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            known = os.stat(self.path)
        except OSError as error:
            raise PlanError(f"{self.path} cannot hold jobs: {error.strerror}") from None
        if known.st_uid != os.geteuid() or stat.S_IMODE(known.st_mode) & 0o077:
            raise PlanError(
                f"{self.path} is open to other users, whose jobs would run under your account: chmod 700 {self.path}"
            )
        return self

    def names(self) -> list[str]:
        """The names of all jobs, the oldest first."""
        try:
            return sorted((name for name in os.listdir(self.path) if NAME.fullmatch(name)), key=int)
        except FileNotFoundError:
            return []

    def submit(self, words: Sequence[str], cwd: Path | None = None, stages: str = "") -> str:
        """Add a job, and its name; once this returns it is on the disk."""
        job = job_request(words, cwd or Path.cwd(), time.time(), stages)
        self.made()
        if (cluster := self.cluster()) is not None and (why := too_large(job, cluster.slots)):
            raise PlanError(why)
        number = int(self.names()[-1]) + 1 if self.names() else 1
        while True:
            try:
                (self.path / f"{number:04d}").mkdir(mode=0o700)
                break
            except FileExistsError:  # another one is submitted at this moment
                number += 1
        place = self.path / f"{number:04d}"
        write_whole(place / JOB, msgspec.json.encode(job))
        return place.name

    def request(self, name: str) -> JobRequest | None:
        """What was submitted; None where that is not complete yet."""
        if not is_own_folder(self.path / name):
            raise WireError(f"{self.path / name} is not a folder: links are not followed")
        try:
            found = _jobs.read_file(self.path / name / JOB)
        except FileNotFoundError:
            return None
        if found.schema != SCHEMA:
            raise WireError(
                f"{self.path / name / JOB} has the format {found.schema[:40]!r}; this covey reads {SCHEMA!r}"
            )
        return found

    def named(self, name: str) -> Path:
        """The folder of a job that somebody has named, also without leading zeros."""
        names = self.names()
        full = f"{int(name):04d}" if name.isascii() and name.isdigit() and len(name) < 10 else name
        if full not in names:
            known = meant(name, names) if names else f": covey jobs submit -- run FILE adds one to {self.path}"
            raise PlanError(f"there is no job {name!r}{known}")
        if not is_own_folder(self.path / full):
            raise PlanError(f"{self.path / full} is not a folder, so it is no job: links are not followed")
        return self.path / full

    def ask_to_stop(self, name: str) -> None:
        write_whole(self.named(name) / STOP, b"")

    def is_asked_to_stop(self, name: str) -> bool:
        """Whether somebody wants this job to end."""
        return (self.path / name / STOP).exists()

    def cluster(self) -> ServedCluster | None:
        """What the last head served, if there was one."""
        try:
            return _clusters.read_file(self.path / CLUSTER)
        except FileNotFoundError:
            return None

    def is_served(self) -> bool:
        """Whether a head serves it now."""
        return atomic_file.is_locked(self.path / LOCK)

    @contextmanager
    def served(self, cluster: ServedCluster) -> Iterator[Callable[[], bool]]:
        """Serve it, as the only one, until the block ends or this process does; whether it still is the same folder."""
        self.made()
        lock = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                who = os.pread(lock, 20, 0).decode(errors="replace")
                raise PlanError(
                    f"another head serves {self.path} (process {who}): submit jobs to it, or name another folder"
                ) from None
            os.ftruncate(lock, 0)
            os.pwrite(lock, str(os.getpid()).encode(), 0)
            write_whole(self.path / CLUSTER, msgspec.json.encode(cluster))
            yield lambda: atomic_file.is_at(lock, self.path / LOCK)
        finally:
            os.close(lock)


def too_large(job: JobRequest, slots: int) -> str:
    """Why this job can never run on so many slots, and what fits; empty where it can."""
    if job.least <= slots:
        return ""
    fits = f"--workers {slots}" + (f", or --workers 1:{slots}" if slots > 1 else "")
    return f"the job needs {job.least} workers, and the cluster has {slots} slots: {fits} fits"


def is_own_folder(path: Path) -> bool:
    """Whether a folder is there, and no link to one."""
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except OSError:
        return False


def write_whole(path: Path, data: bytes) -> None:
    """On the disk, whole, or not there."""
    with atomic_file.replacing(path, ours=True) as new, new.open("wb") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """The names in it are on the disk."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
